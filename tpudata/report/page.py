"""The page: one self-contained HTML file, the same bytes for the same dataset."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tpudata.console.tables import bytes_text, count_text
from tpudata.format import Dataset
from tpudata.format.reject_lines import list_reject_files, read_reject_lines
from tpudata.report.charts import draw_bars, draw_histogram
from tpudata.report.samples import STYLE, Decode, format_picture, format_text
from tpudata.report.split_sample import SplitSample

_Key = TypeVar("_Key", str, int)
_SHOWN_CLASSES, _SHOWN_REJECTS, _SHOWN_TOKENS = 30, 5, 20
# Maximum number of classes that have a row of pictures each; more are shown as a grid.
_MAX_ROWS = 20
_STYLE = """
:root { --ink: #1c2733; --soft: #5b6b7b; --line: #dde4ea; --bar: #2f7ed8; --paper: #fff; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f4f7f9; margin: 0; }
main { max-width: 1000px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 8px 0 2px; overflow-wrap: anywhere; } h2 { font-size: 19px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 16px 0 6px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 18px 22px; margin: 18px 0; }
p.note, figcaption { color: var(--soft); font-size: 13px; margin: 4px 0 10px; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--soft); font-weight: 600; font-size: 13px; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
th { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; max-width: 720px; height: auto; font-size: 12px; } svg rect { fill: var(--bar); } svg text { fill: var(--ink); }
svg line { stroke: var(--line); }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 4px 36px; }
.pictures { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; } .pictures img { border-radius: 4px; }
.class { display: grid; grid-template-columns: 160px 1fr; gap: 10px; padding: 6px 0; border-bottom: 1px solid var(--line); }
.class b { font-weight: 600; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)); gap: 10px; }
.grid .class { display: block; padding: 0; border: 0; font-size: 13px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f7f9; border-radius: 6px; padding: 10px 12px; margin: 8px 0;
      font: 13px/1.45 ui-monospace, monospace; }
section { overflow-x: auto; }
@media (max-width: 640px) {
  main { padding: 10px; } section { padding: 14px; } .charts, .class { grid-template-columns: 1fr; }
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e9ef; --soft: #9fb0c0; --line: #35424f; --paper: #1b242d; color-scheme: dark; }
  body, pre { background: #11181f; }
  mark { background: #2f5130; }
}
"""


def report_page(dataset: Dataset, samples: Mapping[str, SplitSample], decode: Decode = None) -> str:
    """Return the page about a dataset.

    Args:
        dataset: the dataset.
        samples: statistics of some records of each split, by the split's name.
        decode: function from token ids to their text; None shows the ids.
    """
    manifest = dataset.manifest
    size = sum(split.bytes for split in manifest.splits.values())
    compression = "" if manifest.compression is None else f", {manifest.compression}"
    body = [
        f"<h1>{html.escape(dataset.path)}</h1>",
        f'<p class="note">{count_text(manifest.records, "record")} in {bytes_text(size)}, layout {html.escape(manifest.layout)}'
        f"{compression}; made by {html.escape(manifest.created_by)} from {html.escape(manifest.source.input)}"
        f" ({count_text(manifest.source.files, 'input')}, {bytes_text(manifest.source.bytes)})</p>",
        _format_section("Splits", [_format_splits(dataset)]),
    ]
    for name, sample in samples.items():
        body.append(_format_section(f"Split {name}", _format_split(dataset, name, sample, decode)))
    body.append(_format_section("Features", [_format_features(dataset)]))
    body.append(_format_section("Rejected inputs", _format_rejects(dataset)))
    if manifest.counts:
        rows = [[count_text(count), name.replace("_", " ")] for name, count in sorted(manifest.counts.items())]
        body.append(
            _format_section("Counted by the conversion", [_format_table(["count", "what"], rows, number_columns=[0])])
        )
    if manifest.converted:
        rows = [[count_text(count), reason] for reason, count in sorted(manifest.converted.items())]
        body.append(
            _format_section("Re-encoded inputs", [_format_table(["inputs", "reason"], rows, number_columns=[0])])
        )
    rows = [[name, json.dumps(value, sort_keys=True)] for name, value in sorted(manifest.options.items())]
    body.append(_format_section("Options of the conversion", [_format_table(["option", "value"], rows)]))
    body_html = "\n".join(body)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(dataset.path)}</title><style>{_STYLE}{STYLE}</style></head>\n"
        f"<body><main>\n{body_html}\n</main></body></html>\n"
    )


def _format_section(title: str, parts: Iterable[str]) -> str:
    content = "\n".join(parts)
    return f"<section><h2>{html.escape(title)}</h2>\n{content}</section>"


def _format_table(head: Sequence[str], rows: Iterable[Sequence[str]], number_columns: Sequence[int] = ()) -> str:
    """Return the HTML of a table of strings.

    Args:
        head: headings of the columns.
        rows: cells of each row.
        number_columns: indices of the columns that are aligned on the right.
    """

    def format_row(tag: str, cells: Sequence[str]) -> str:
        """Return the HTML of a row, whose cells are elements `tag` (th or td)."""
        parts = []
        for column, cell in enumerate(cells):
            attribute = ' class="number"' if column in number_columns else ""
            parts.append(f"<{tag}{attribute}>{html.escape(cell)}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    return f"<table>{format_row('th', head)}{''.join(format_row('td', cells) for cells in rows)}</table>"


def _format_splits(dataset: Dataset) -> str:
    """Return the HTML of a table of the splits."""
    rows = []
    for name, split in dataset.manifest.splits.items():
        sizes = [shard.bytes for shard in split.shards]
        spread = f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}" if sizes else "-"
        rows.append([name, count_text(split.records), count_text(len(sizes)), bytes_text(split.bytes), spread])
    return _format_table(["split", "records", "shards", "bytes", "size of shards"], rows, number_columns=[1, 2, 3, 4])


def _format_features(dataset: Dataset) -> str:
    """Return the HTML of a table of the features."""
    rows = []
    for feature in dataset.manifest.features:
        shape = " x ".join("?" if size is None else str(size) for size in feature.shape) or "scalar"
        classes = "" if feature.num_classes is None else count_text(feature.num_classes, "class", "classes")
        rows.append([feature.name, f"{feature.kind} {feature.encoding or ''}".strip(), feature.dtype, shape, classes])
    return _format_table(["feature", "stored as", "decoded to", "shape", ""], rows)


def _format_split(dataset: Dataset, name: str, sample: SplitSample, decode: Decode) -> Iterator[str]:
    """Yield the HTML of a split's samples, tables and histograms.

    Args:
        dataset: the dataset.
        name: name of the split.
        sample: statistics of some records of the split.
        decode: function from token ids to their text; None shows the ids.
    """
    scope = "all" if sample.read_count == sample.record_count else f"{count_text(sample.read_count)} of"
    yield f'<p class="note">From {scope} {count_text(sample.record_count, "record")}; the same ones in every report.</p>'
    yield from (f"<p>{html.escape(line)}</p>" for line in _describe_duplicates(sample))
    if sample.misfit_count:
        misfits = count_text(sample.misfit_count, "record")
        yield f"<p>{misfits} that do not match the manifest; see <code>tpudata verify</code>.</p>"
    if sample.unreadable_count:
        unreadable = count_text(sample.unreadable_count, "picture")
        yield f"<p>{unreadable} cannot be decoded; see <code>tpudata verify --decode</code>.</p>"
    if sample.pictures:
        yield from _format_pictures(sample)
    if sample.texts:
        yield from _format_texts(sample, decode)
    for title, counts in (("Classes", sample.classes), ("Classes of objects", sample.object_classes)):
        if counts:
            rows = _sort_by_count(counts)
            more = "" if len(rows) <= _SHOWN_CLASSES else f" (the {_SHOWN_CLASSES} largest of {count_text(len(rows))})"
            yield f"<h3>{title}{more}</h3>{draw_bars(rows[:_SHOWN_CLASSES])}"
    charts = list(_draw_histograms(sample, [shard.bytes for shard in dataset.manifest.split(name).shards]))
    yield f'<div class="charts">{"".join(charts)}</div>'
    if sample.token_position_count:
        # `lengths` do not count padding, `token_position_count` does.
        real_share = sum(map(sum, sample.lengths.values())) / sample.token_position_count
        yield f'<p class="note">{real_share:.1%} of the token positions hold tokens, the rest padding.</p>'
    if sample.tokens:
        yield from _format_tokens(sample, decode)


def _sort_by_count(counts: Mapping[_Key, int]) -> list[tuple[_Key, int]]:
    """Return keys and their counts, the largest count first; keys with equal counts are in their own order."""
    return sorted(sorted(counts.items()), key=lambda key_and_count: -key_and_count[1])


def _describe_duplicates(sample: SplitSample) -> Iterator[str]:
    """Yield sentences on the duplicates among the records that were read."""
    if sample.duplicate_count:
        yield f"{count_text(sample.duplicate_count, 'duplicate')}: the same content as an earlier record of the split."
    if sample.near_duplicate_count:
        # Only pictures have sizes.
        criterion = (
            "the outline of an earlier picture" if sample.sizes else "an earlier text except for case and spaces"
        )
        yield f"{count_text(sample.near_duplicate_count, 'near-duplicate')}: {criterion}."
    for split, count in sorted(sample.shared.items()):
        yield f"{count_text(count, 'record')} with the same content as a record of split {split}."


def _format_texts(sample: SplitSample, decode: Decode) -> Iterator[str]:
    """Yield the HTML of the sample texts by class."""
    yield "<h3>Samples</h3>"
    for name, texts in sorted(sample.texts.items()):
        blocks = "".join(format_text(text, decode) for text in texts)
        yield f'<div class="class"><b>{html.escape(name)}</b><div>{blocks}</div></div>' if name else blocks


def _format_tokens(sample: SplitSample, decode: Decode) -> Iterator[str]:
    """Yield the HTML of the number of tokens and of different ids, and of the most frequent ids."""
    token_count = sample.tokens.total()
    rare_id_count = sum(count == 1 for count in sample.tokens.values())
    yield (
        f"<h3>Tokens</h3><p>{count_text(token_count, 'token')} with {count_text(len(sample.tokens), 'different id')},"
        f" of which {count_text(rare_id_count)} occur once.</p>"
    )
    top_tokens = _sort_by_count(sample.tokens)[:_SHOWN_TOKENS]
    yield draw_bars(
        [(f"{token_id}  {decode([token_id])!r}" if decode else str(token_id), count) for token_id, count in top_tokens]
    )


class _Measurement(NamedTuple):
    """Values of the records, pictures or shards of a split; `unit` is a noun in the singular."""

    title: str
    values: Sequence[int]
    unit: str


def _draw_histograms(sample: SplitSample, shard_bytes: Sequence[int]) -> Iterator[str]:
    """Yield the HTML of histograms of a split's sizes, lengths and shards."""
    measurements = [
        _Measurement("Height", [height for height, _ in sample.sizes], "pixel"),
        _Measurement("Width", [width for _, width in sample.sizes], "pixel"),
        *_list_lengths(sample),
        _Measurement("Objects a record", sample.object_counts, "object"),
        _Measurement("Record size", sample.record_bytes, "byte"),
        # The size of a single shard is in the table of splits.
        _Measurement("Shard size", shard_bytes if len(shard_bytes) > 1 else (), "byte"),
    ]
    for title, values, unit in measurements:
        if values:
            if min(values) == max(values):
                chart = f"<p>All have {count_text(values[0], unit)}.</p>"
            else:
                chart = draw_histogram(values, f"{unit}s")
            yield f"<div><h3>{html.escape(title)}</h3>{chart}</div>"


def _list_lengths(sample: SplitSample) -> Iterator[_Measurement]:
    """Yield the lengths of each feature of text or tokens."""
    # Only samples of tokens count token positions; texts are measured in characters.
    unit = "token" if sample.token_position_count else "character"
    for name, lengths in sample.lengths.items():
        yield _Measurement("Length" if len(sample.lengths) == 1 else f"Length of {name}", lengths, unit)


def _format_pictures(sample: SplitSample) -> Iterator[str]:
    """Yield the HTML of the sample pictures by class: a row for each class, or a grid if there are many."""
    is_grid = len(sample.pictures) > _MAX_ROWS
    if is_grid:
        yield '<div class="grid">'
    for name, pictures in sorted(sample.pictures.items(), key=lambda item: _make_sort_key(item[0])):
        images = f'<div class="pictures">{"".join(map(format_picture, pictures))}</div>'
        yield f'<div class="class"><b>{html.escape(name)}</b>{images}</div>' if name else images
    if is_grid:
        yield "</div>"


def _make_sort_key(name: str) -> tuple[int, str]:
    """Return the sort key of a class: names that are numbers are sorted by their value."""
    return (int(name) if name.isdecimal() else 0, name)


def _format_rejects(dataset: Dataset) -> Iterator[str]:
    """Yield the HTML about rejected inputs: counts by reason, and some inputs."""
    rejected = dataset.manifest.rejected
    if not rejected:
        yield "<p>None.</p>"
        return
    rows = [[count_text(count), reason] for reason, count in sorted(rejected.items(), key=lambda item: -item[1])]
    yield _format_table(["inputs", "reason"], rows, number_columns=[0])
    yield f"<h3>Some of them</h3>{_format_table(['input', 'reason'], _read_some_rejects(dataset))}"


def _read_some_rejects(dataset: Dataset) -> list[list[str]]:
    """Return the source and the reason of some rejected inputs, as rows of a table."""
    rows: list[list[str]] = []
    for path in list_reject_files(dataset.path):
        for line in read_reject_lines(path):
            # A damaged line would have raised an error.
            assert line.value is not None
            rows.append([line.value["source"], line.value["reason"]])
            if len(rows) == _SHOWN_REJECTS:
                return rows
    return rows
