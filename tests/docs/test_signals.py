"""docs/signals.md against the registry of names, and the capture that ships against it too."""

import re
from importlib.resources import as_file, files

from semconv.rules import assert_conforms, seen

from docs.markdown import named, read, sections, table
from otel_cache.semconv import names
from scripts.semconv.registry import load

TEXT = read("docs/signals.md")
SECTIONS = sections(TEXT)
REGISTRY = load()
NAMESPACE = r"(?:vllm|otel_cache|gen_ai)\.[a-z0-9_.]+"


def test_every_name_is_documented() -> None:
    """Each span, attribute and value of the registry stands in the page, in backticks."""
    known = {value for name, value in vars(names).items() if name.isupper()} | set(REGISTRY.attributes)
    known |= {member.value for attribute in REGISTRY.attributes.values() for member in attribute.members}
    missing = sorted(value for value in known if f"`{value}`" not in TEXT)
    assert not missing, f"docs/signals.md lacks {', '.join(missing)}"


def test_nothing_else_is_documented() -> None:
    """No name of our namespaces in the page is unknown to the registry."""
    unknown = sorted(named(TEXT, NAMESPACE) - set(REGISTRY.attributes) - set(REGISTRY.spans) - set(REGISTRY.metrics))
    assert not unknown, f"docs/signals.md names {', '.join(unknown)}"


def test_spans_have_sections() -> None:
    """One section per span, with the table of that span."""
    assert {heading.strip("`") for heading in SECTIONS if heading.startswith("`")} == set(REGISTRY.spans)
    for name, group in REGISTRY.spans.items():
        own = {each.id for each in group.attributes if not each.inherited}
        assert own <= set(re.findall(r"^\| `([a-z0-9_.]+)` \|", SECTIONS[f"`{name}`"], re.MULTILINE))


def test_every_topic_has_its_table() -> None:
    """Also what is no span: attributes that several have, links, the resource."""
    tables = {name for section in SECTIONS.values() for name in table(section)}
    assert tables >= set(REGISTRY.attributes)


def test_the_shipped_capture_is_as_registered() -> None:
    """Names and types; made by an earlier build, it may lack what came since."""
    with as_file(files("analyzers") / "examples" / "model_case.jsonl") as path:
        assert_conforms(path, REGISTRY)
        assert set(seen(path)) >= {"", names.REQUEST, names.LOOKUP, names.GROUP_LOOKUP, names.STORE, names.STEP}
