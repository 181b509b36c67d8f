"""A scenario: what the lab is to build and which requests it is to send.

    engine:
      block_size: 1600                       # of every group that names none of its own
      prefix_match_unit: null                # hash block; null: the largest that divides every group's block
      split_block_size: null                 # chunks end on its multiples; null: the smallest of the groups' blocks
      enable_mamba_shared_prefix_checkpoint: false
      prefix_cache_retention_interval: 0     # tokens, `dense`, or `default`: what this vLLM does unasked
      max_num_batched_tokens: 8192
      num_gpu_blocks: 400
      max_num_seqs: 8
      max_model_len: 131072
      async_scheduling: false
      speculative: {method: mtp, num_speculative_tokens: 2, accepted_tokens: 0}     # or null
      groups:
        - {kind: mamba, layers: 3}           # layers: that many groups of one layer each
        - {kind: sliding_window, window: 1024, block_size: 64}
        - {kind: full_attention, draft: true}       # draft: the drafter's layers are in this group
    replicas: 1
    requests:
      - {id: cold, prompt: [{segment: doc, tokens: 11910}], output_tokens: 3}
      - {id: repeat, prompt: [{segment: doc, tokens: 11910}], times: 3, replica: 0, with: cold}

A segment's name and length fix its tokens, a shorter use being a prefix of a longer one. What request `cold`
generates is the segment `output:cold`, so a next turn can be written. Requests run one after the other. One with
`with` starts in the same step as the first sending of the request it names, and all its sendings start together;
a chain of them is one batch. Without `replica` the sendings go round robin. All lengths are in tokens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from analyzers.vllm_lab.keys import check_keys, wrong_value
from analyzers.vllm_lab.tokens import VOCABULARY
from otel_cache.errors import ScenarioError

# Upper bounds keep a slip of the pen from filling the machine's memory; nothing real comes near them.
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Few = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Kind = Literal["mamba", "full_attention", "sliding_window"]
Method = Literal["mtp", "ngram"]
Vocabulary = Annotated[int, msgspec.Meta(ge=1000, le=(1 << 31) - 1)]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`layers` KV-cache groups of one kind; `window` only and always for sliding_window, `replay` there alone."""

    kind: Kind
    layers: Few = 1
    block_size: Positive | None = None
    window: Positive | None = None
    draft: bool = False
    replay: bool = False


class Speculative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speculative decoding; of each step's drafts the first `accepted_tokens` are right, the others rejected."""

    method: Method
    num_speculative_tokens: Positive = 1
    accepted_tokens: Count = 0


class Connector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """A KV connector of one's own: the class, its module, the folder that the module lies in, its extra settings."""

    class_: Name
    module_path: Name
    folder: Name | None = None
    extra: dict[str, str | int | float | bool] = {}


class CpuOffload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's SimpleCPUOffloadConnector; `blocks` is the size of its own pool, `lazy` its mode."""

    blocks: Positive
    lazy: bool = False


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one engine core, by vLLM's names."""

    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1)]
    block_size: Positive = 16
    prefix_match_unit: Positive | None = None
    split_block_size: Positive | None = None
    enable_mamba_shared_prefix_checkpoint: bool = False
    prefix_cache_retention_interval: Count | Literal["dense", "default"] = "default"
    max_num_batched_tokens: Positive = 8192
    num_gpu_blocks: Positive = 400
    max_num_seqs: Positive = 8
    max_model_len: Positive = 131072
    async_scheduling: bool = False
    speculative: Speculative | None = None
    connector: Literal["decode_bench"] | Connector | None = None
    cpu_offload: CpuOffload | None = None
    vocabulary: Vocabulary = VOCABULARY

    def group_list(self) -> list[Group]:
        """Return one entry per KV-cache group, each with its block size, in the order of the group ids."""
        return [
            msgspec.structs.replace(group, layers=1, block_size=group.block_size or self.block_size)
            for group in self.groups
            for _ in range(group.layers)
        ]

    def block_sizes(self) -> list[int]:
        """Return the block size of each group."""
        return [group.block_size or self.block_size for group in self.group_list()]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first `tokens` tokens of the segment of this name."""

    segment: Name
    tokens: Positive


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A multimodal item in the place of `tokens` tokens of the prompt from `offset` on; equal names, equal content."""

    content: Name
    offset: Count
    tokens: Positive


class LabRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"with_": "with"}):
    """A request and how often it is sent.

    `cache_salt`, `lora` (an adapter's name) and `items` set the extra keys. `delay`, `stop_after` and `abort_after` are
    counted in steps, output tokens and steps.
    """

    id: Name
    prompt: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1)]
    output_tokens: Positive = 3
    times: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    replica: Count | None = None
    with_: str | None = None
    delay: Count = 0
    cache_salt: Name | None = None
    lora: Name | None = None
    lora_path: Name | None = None
    items: tuple[Item, ...] = ()
    skip_prefix_cache: bool = False
    session_id: Name | None = None
    trace_headers: dict[str, str] = {}
    stop_after: Positive | None = None
    abort_after: Positive | None = None
    reset: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(part.tokens for part in self.prompt)


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the lab builds, and what it sends."""

    engine: Engine
    requests: Annotated[tuple[LabRequest, ...], msgspec.Meta(min_length=1)]
    replicas: Few = 1
    observe_cache: bool = False


class Sending(msgspec.Struct, frozen=True):
    """One sending of a request: its id in vLLM, and the index of the replica that takes it."""

    id: str
    replica: int
    request: LabRequest


def sending_ids(request: LabRequest) -> list[str]:
    """Return the ids of a request's sendings: its own where it is sent once, else with -0, -1, ... behind it."""
    return [request.id] if request.times == 1 else [f"{request.id}-{index}" for index in range(request.times)]


def batches(scenario: Scenario) -> Iterator[list[Sending]]:
    """Yield the batches in order: the sendings of one batch start together, each batch when the last has ended."""
    followers: dict[str, list[LabRequest]] = {}
    for request in scenario.requests:
        if request.with_ is not None:
            followers.setdefault(request.with_, []).append(request)
    turn = 0

    def send(request: LabRequest, name: str) -> Sending:
        nonlocal turn
        if request.replica is not None:
            return Sending(name, request.replica, request)
        turn += 1
        return Sending(name, (turn - 1) % scenario.replicas, request)

    for request in scenario.requests:
        if request.with_ is not None:
            continue
        first, *others = sending_ids(request)
        batch = [send(request, first)]
        waiting = [request.id]
        while waiting:
            for follower in followers.get(waiting.pop(0), ()):
                batch.extend(send(follower, name) for name in sending_ids(follower))
                waiting.append(follower.id)
        yield batch
        for name in others:
            yield [send(request, name)]


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, not the last one's victory."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


def find_scenario(name: Path) -> Path:
    """Return the path of the scenario that ships under this bare name, or `name` itself where none does."""
    shipped = Path(__file__).parent / "scenarios" / f"{name}.yaml"
    return shipped if len(name.parts) == 1 and not name.exists() and shipped.is_file() else name


def shipped_scenarios() -> list[str]:
    """Return the names of the scenarios that come with otel-cache."""
    return sorted(path.stem for path in (Path(__file__).parent / "scenarios").glob("*.yaml"))


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a YAML file.

    Raises:
        ScenarioError: the file is not there, is not YAML, or says something impossible; names the place.

    """
    return parse_scenario(load_yaml(path, "a scenario"), str(path))


def load_yaml(path: Path, what: str) -> Any:
    """Return what a YAML file holds; `what` it is stands in messages.

    Raises:
        ScenarioError: the file is not there, or is not YAML.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = f", or the name of one that ships: {', '.join(shipped_scenarios())}" if what == "a scenario" else ""
        raise ScenarioError(f"{path}: no such file; give the path of {what} in YAML{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read as text: {error}") from error
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise ScenarioError(f"{path}: not YAML at {where}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error


def parse_scenario(data: object, source: str = "scenario") -> Scenario:
    """Make a scenario of plain dictionaries and lists; `source` opens the messages.

    Raises:
        ScenarioError: an unknown key, a wrong type or an impossible value; names the place.

    """
    from analyzers.vllm_lab.checks import check_scenario

    if not isinstance(data, dict):
        raise ScenarioError(f"{source}: a scenario is a mapping with the keys engine and requests")
    check_keys(data, Scenario, source)
    try:
        scenario = msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{source}: {wrong_value(error, Scenario)}") from error
    check_scenario(scenario, source)
    return scenario
