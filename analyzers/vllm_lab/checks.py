"""What a scenario of the right form can still say that is impossible."""

import math

from analyzers.vllm_lab.scenario import Engine, LabRequest, Scenario, sending_ids
from otel_cache.errors import ScenarioError

SPARSE = ("mamba", "sliding_window")


def check_scenario(scenario: Scenario, source: str) -> None:
    """Check what types cannot say.

    Raises:
        ScenarioError: names the place, what is wrong there, and what would be right.

    """
    try:
        _check_engine(scenario.engine)
        _check_requests(scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{source}: {error}") from None


def _check_engine(engine: Engine) -> None:
    for index, group in enumerate(engine.groups):
        if group.kind == "sliding_window" and group.window is None:
            raise ScenarioError(f"engine.groups[{index}]: a sliding_window group needs window, in tokens")
        if group.kind != "sliding_window" and group.window is not None:
            raise ScenarioError(f"engine.groups[{index}].window: only a sliding_window group has a window")
        if group.kind != "sliding_window" and group.replay:
            raise ScenarioError(f"engine.groups[{index}].replay: only a sliding_window group can be rebuilt by replay")
        if group.draft and engine.speculative is None:
            raise ScenarioError(f"engine.groups[{index}].draft: there is no drafter without engine.speculative")
    sizes = engine.block_sizes()
    lcm = math.lcm(*sizes)
    unit = engine.prefix_match_unit
    if unit is not None:
        if any(size % unit for size in sizes):
            raise ScenarioError(
                f"engine.prefix_match_unit: {unit} does not divide every group's block size ({_listed(sizes)})"
            )
        if len(sizes) == 1 and unit != sizes[0]:
            raise ScenarioError(
                f"engine.prefix_match_unit: with a single group hits land on its block; use {sizes[0]} or null"
            )
    interval = engine.prefix_cache_retention_interval
    if isinstance(interval, int):
        if interval % lcm:
            raise ScenarioError(
                f"engine.prefix_cache_retention_interval: {interval} is no multiple of the scheduler block, {lcm}, "
                f"the least common multiple of the groups' block sizes; use {lcm}, 0, dense or default"
            )
        if not any(group.kind in SPARSE for group in engine.groups):
            raise ScenarioError(
                "engine.prefix_cache_retention_interval: has no effect without a mamba or sliding_window group; "
                "use default"
            )
    mamba = [size for group, size in zip(engine.group_list(), sizes, strict=True) if group.kind == "mamba"]
    if mamba and engine.max_num_batched_tokens < max(mamba):
        raise ScenarioError(
            f"engine.max_num_batched_tokens: {engine.max_num_batched_tokens} is less than a mamba block of "
            f"{max(mamba)} tokens, so no prefill could reach a boundary; use at least {max(mamba)}"
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise ScenarioError(
            f"engine.max_num_batched_tokens: must be at least engine.max_num_seqs, which is {engine.max_num_seqs}"
        )
    if engine.speculative and engine.speculative.accepted_tokens > engine.speculative.num_speculative_tokens:
        raise ScenarioError("engine.speculative.accepted_tokens: more than engine.speculative.num_speculative_tokens")
    if engine.connector is not None and engine.cpu_offload is not None:
        raise ScenarioError("engine.cpu_offload: is a connector of its own; take engine.connector away or this")
    if engine.cpu_offload is not None and not any(group.kind == "full_attention" for group in engine.groups):
        raise ScenarioError("engine.cpu_offload: vLLM's offloading needs a full_attention group")


def _check_requests(scenario: Scenario) -> None:
    names: set[str] = set()
    sent: dict[str, str] = {}
    for index, request in enumerate(scenario.requests):
        place = f"requests[{index}]"
        if request.id in names:
            raise ScenarioError(f"{place}.id: {request.id!r} stands twice; use times to send a request again")
        for name in sending_ids(request):
            if name in sent:
                raise ScenarioError(f"{place}.id: its sending {name!r} has the id of one of {sent[name]}; rename one")
            sent[name] = place
        if request.with_ is not None and request.with_ not in names:
            later = any(other.id == request.with_ for other in scenario.requests)
            problem = "does not stand above this request" if later else "is no request"
            known = f"one of {_listed(sorted(names))}" if names else "a request above it"
            raise ScenarioError(f"{place}.with: {request.with_!r} {problem}; name {known}")
        names.add(request.id)
        if request.replica is not None and request.replica >= scenario.replicas:
            raise ScenarioError(
                f"{place}.replica: {request.replica}, but there are {scenario.replicas}, numbered from 0"
            )
        total = request.prompt_tokens + request.output_tokens
        if total > scenario.engine.max_model_len:
            raise ScenarioError(
                f"{place}: {total} tokens with its output, more than engine.max_model_len, "
                f"{scenario.engine.max_model_len}"
            )
        if request.with_ is None and request.delay:
            raise ScenarioError(f"{place}.delay: counts steps from the start of another request; name it by with")
        if request.with_ is not None and request.reset:
            raise ScenarioError(
                f"{place}.reset: a request that starts with another finds it running; put it on that one"
            )
        if request.lora_path is not None and request.lora is None:
            raise ScenarioError(f"{place}.lora_path: there is no adapter without lora")
        if request.stop_after is not None and request.stop_after > request.output_tokens:
            raise ScenarioError(f"{place}.stop_after: more than output_tokens, {request.output_tokens}")
        _check_items(request, scenario.engine.max_num_batched_tokens, place)


def _check_items(request: LabRequest, most: int, place: str) -> None:
    end = 0
    for index, item in enumerate(request.items):
        here = f"{place}.items[{index}]"
        if item.offset < end:
            raise ScenarioError(f"{here}.offset: {item.offset} lies before the end of the item above it, {end}")
        end = item.offset + item.tokens
        if end > request.prompt_tokens:
            raise ScenarioError(f"{here}: ends at {end}, beyond the prompt's {request.prompt_tokens} tokens")
        if item.tokens > most:
            raise ScenarioError(f"{here}.tokens: an item is encoded in one step, which takes at most {most} tokens")


def _listed(values: list[int] | list[str]) -> str:
    return ", ".join(str(value) for value in values)
