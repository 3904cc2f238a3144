"""Writing examples aside: a bundle is one file, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam.pvalue import TaggedOutput

from beam_jobs.examples.example_files import SCHEMA, TALLY, SpoolExamples
from beam_jobs.examples.rules import ExampleRules
from beam_jobs.options import ConvertOptions
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reading import read_reference
from tpudata.errors import FeatureError
from tpudata.format import decode_example


def spool(folder: Path, **rules: Any) -> SpoolExamples:
    said: dict[str, Any] = {"key": None, "split_of": None, "schema": None, "label": "label", "classes": None, **rules}
    return SpoolExamples(ConvertOptions(input="beam://x", output=str(folder)), ExampleRules(**said))


def test_references_point_at_the_records(tmp_path: Path) -> None:
    do_fn = spool(tmp_path)
    do_fn.start_bundle()
    outputs: list[Any] = []
    for number in range(5000):
        outputs += do_fn.process((f"key{number}", {"n": number}))
    # A first pack was full.
    assert [type(output) for output in outputs] == [bytes, TaggedOutput]
    rest = list(do_fn.finish_bundle())
    tags = [output.tag for output in rest if isinstance(output, TaggedOutput)]
    assert tags == [TALLY, SCHEMA]
    references = [*Pack.from_bytes(outputs[0]).references(), *Pack.from_bytes(rest[0].value).references()]
    assert [reference.key for reference in references] == [f"key{number}" for number in range(5000)]
    for number in (0, 1, 4095, 4096, 4999):
        assert decode_example(read_reference(references[number])) == {"n": [number]}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_bundle_leaves_no_file(tmp_path: Path) -> None:
    do_fn = spool(tmp_path)
    do_fn.start_bundle()
    list(do_fn.process({"n": 1}))
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(FeatureError, match="Example: 'k'"):
        list(do_fn.process(("k", {"n": None})))
    assert list(tmp_path.iterdir()) == []
    do_fn.start_bundle()
    list(do_fn.process({"n": 1}))
    do_fn.teardown()
    assert list(tmp_path.iterdir()) == []


def test_content_is_the_key_of_an_example_without_one(tmp_path: Path) -> None:
    do_fn = spool(tmp_path)
    do_fn.start_bundle()
    for example in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}):
        list(do_fn.process(example))
    first, second, third = Pack.from_bytes(next(iter(do_fn.finish_bundle())).value).references()
    assert first.key == second.key != third.key
