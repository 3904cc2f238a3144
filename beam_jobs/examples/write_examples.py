"""`WriteTFRecordShards`: writes the examples of any pipeline as a dataset.

The steps are those of every conversion, except the first, which writes the examples to temporary files.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import PipelineVisitor
from apache_beam.pvalue import AsList, AsSingleton
from apache_beam.transforms.window import GlobalWindows

from beam_jobs.converter import ShardContext
from beam_jobs.examples.example_files import SCHEMA, TALLY, SpoolExamples
from beam_jobs.examples.rules import ExampleRules, flatten_features
from beam_jobs.examples.schema import ExampleConverter, ExampleSummary
from beam_jobs.options import DEFAULT_SHARD_BYTES, ConvertOptions, SplitShares, parse_size
from beam_jobs.options.convert import resolve_path
from beam_jobs.output.folder import (
    check_has_dali_index,
    choose_suffix,
    look_at_output,
    reject_another_dataset,
    reject_foreign_metadata,
    reject_strays,
)
from beam_jobs.output.removal import give_up, remove_dataset
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.plan import Plan, SumTallies, make_plan
from beam_jobs.planning.tally import Tally
from beam_jobs.references.labels import Labels
from beam_jobs.run.places import check_places
from beam_jobs.run.runner import is_in_process
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.limited_step import apply_limits
from beam_jobs.steps.write_dataset import WriteDataset
from tpudata.console.tables import count_text
from tpudata.error_text.values import format_value
from tpudata.errors import FeatureError, SourceError, StorageError, TpudataError, UsageError
from tpudata.format import Feature
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.tfrecord.gzip_blocks import check_compression
from tpudata.storage import request_limits, storage_for
from tpudata.storage.claims.claim import JOB, PIPELINE, Claim
from tpudata.storage.claims.hold import check_claim, take_claim
from tpudata.storage.claims.liveness import check_unclaimed

LAYOUT = "examples"
# A flag in a message of the options, which the argument of the same name replaces.
_FLAG = re.compile(r"--([a-z-]+)")
# The input in the manifest, since a pipeline has no path.
_INPUT = "beam://PCollection"


class WriteTFRecordShards(beam.PTransform):  # type: ignore[misc]
    """Transform that writes a bounded PCollection of examples as a dataset: shards, index, schema, TFDS metadata and manifest.

    An example is a dict of values by feature name, or a pair of its key and such a dict. Its key decides its split and its
    position in the shuffled order, so the same examples give the same bytes in every shard, in any order and with any number of
    workers. Without a key, the content of an example is its key: equal examples are neighbours in the same split, and all are kept.
    With keys, two examples with the same key are an error.

    Values are bytes, str, int, bool, float, lists of one of these, numpy arrays, whose shape is kept in the schema, and nested
    dicts, whose names are joined: `{"image": {"height": 3}}` is `image/height`. beam_jobs.feature_values.values lists the feature
    of each kind of value; arrays of uint8 are stored as one byte a value.

    The result is a PCollection of one element, the `tpudata.format.Manifest` of the dataset, once it is complete.

    Each example is encoded once and written to a temporary file in the output folder, which needs room for all of them twice during
    the job; only references to them are grouped and sorted. Messages name arguments as the flags of `tpudata convert`.

    Args:
        output: folder of the dataset; new or empty, unless `resume` or `overwrite` is True.
        key: function from an example to its key (str, bytes or int), instead of pairs.
        features: the schema. By default it is inferred: a feature's kind and rank are the same in every record, and a dimension
            that varies becomes None.
        defaults: by feature, the value that replaces None and a missing one, such as `{"age": -1}`.
        labels: class names; the label of a class is its index among them. Feature `label` is then a class name or its number,
            and is stored as the number.
        label: name of the feature with the class. `tpudata.make_input_fn` feeds `label` and `image/class/label` as labels.
        split: shares such as `"train=0.9,validation=0.1"`, the name of one split, or a function from an example to its split.
            Shares apply to a stable hash of the key. By default all examples are in `train`.
        shard_size: target size of shards: bytes, or text such as `"100MB"`.
        num_shards: number of shards of every split, instead of a size.
        shards_multiple_of: the number of shards of every split is a multiple of this number.
        seed: seed of the shuffled order.
        compression: compression of the shards: None or `"gzip"`.
        dali_index: whether shards also get an index for NVIDIA DALI.
        resume: whether to continue a killed run: keep its finished shards, write the rest.
        overwrite: whether to replace the dataset in the output; the files of its manifest are removed when the pipeline runs.

    Raises:
        UsageError: an argument is invalid, or two do not fit each other.

    The pipeline, when it is built or run, raises:
        UsageError: the PCollection is unbounded, another transform of the pipeline writes to `output`, workers on other machines
            cannot write to it, or there are too few examples for the requested shards.
        OutputError: the output folder is another run's, or holds files that neither `resume` nor `overwrite` accepts.
        SourceError: there are no examples, an element is not one, a key is repeated, or a label is unknown (BadRecordError).
        FeatureError: a value is of an unsupported kind, does not fit `features`, or two records do not fit each other; the
            message names the feature.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        key: Callable[[Any], str | bytes | int] | None = None,
        features: Iterable[Feature] | None = None,
        defaults: Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        label: str = "label",
        split: str | Callable[[Any], str] | None = None,
        shard_size: int | str = DEFAULT_SHARD_BYTES,
        num_shards: int | None = None,
        shards_multiple_of: int = 1,
        seed: int = 0,
        compression: str | None = None,
        dali_index: bool = False,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        check_compression(compression)
        try:
            self._options = ConvertOptions(
                input=_INPUT,
                output=os.fsdecode(output),
                split=_parse_shares(split) if isinstance(split, str) else None,
                shard_bytes=_parse_size_argument(shard_size),
                num_shards=num_shards,
                shards_multiple_of=shards_multiple_of,
                seed=seed,
                compression=compression,
                dali_index=dali_index,
                resume=resume,
                overwrite=overwrite,
            )
        except UsageError as error:
            # Flags of the command are arguments here: --num-shards is num_shards.
            raise UsageError(_FLAG.sub(lambda match: match[1].replace("-", "_"), str(error))) from None
        if not isinstance(label, str) or not label:
            raise UsageError(f"label: not the name of a feature (got {label!r})")
        split_of = None if isinstance(split, str) else split
        for name, function in (("key", key), ("split", split_of)):
            if function is not None and not callable(function):
                raise UsageError(f"{name}: not a function of an example (got {function!r})")
        classes = None if labels is None else _parse_classes(labels)
        schema = None if features is None else _complete_schema(features, label, classes)
        self._rules = ExampleRules(key, split_of, schema, label, classes, _parse_defaults(defaults or {}))
        self._rules.check_defaults()

    def expand(self, examples: beam.PCollection) -> beam.PCollection:
        """Add the steps to the pipeline of the examples; the class describes what is raised."""
        if not examples.is_bounded:
            raise UsageError(
                "WriteTFRecordShards: the PCollection is unbounded, and the shards depend on all examples. Pass a bounded one."
            )
        pipeline = examples.pipeline
        runner_name = type(pipeline.runner).__name__
        is_local = is_in_process(runner_name)
        options = _limit_options(self._options, is_local=is_local)
        check_places(pipeline.options, {"output": options.output}, runner_name)
        self._check_is_only_writer(pipeline)
        # The output is checked now, before the pipeline spends hours; existing files stay unchanged until the plan is made.
        check_unclaimed(options.output)
        look_at_output(options.output, resume=options.resume, overwrite=options.overwrite)
        claim = Claim.new(PIPELINE if is_local else JOB)
        limits = options.request_limits
        claim_input = AsSingleton(
            pipeline
            | "Run" >> beam.Create([options.output])
            | "Claim" >> beam.Map(apply_limits(limits, _take_claim), claim)
        )
        # All examples go into one dataset, whatever windows they have.
        spooled = (
            examples
            | "Globally" >> beam.WindowInto(GlobalWindows())
            | "Spool"
            >> beam.ParDo(SpoolExamples(options, self._rules), claim_input).with_outputs(TALLY, SCHEMA, main="packs")
        )
        converter = ExampleConverter(self._rules.schema)
        labels = Labels(self._rules.classes or ())
        context = pipeline | "Context" >> beam.Create([ShardContext(labels)])
        counts = pipeline | "Counts" >> beam.Create([InputCounts()])
        tally = spooled[TALLY] | "Tally" >> beam.CombineGlobally(SumTallies())
        # Summaries are mapped to themselves: Beam's BundleBasedDirectRunner (2.77) confuses outputs of a step if one of them is a
        # side input.
        schemas = AsList(spooled[SCHEMA] | "Schemas" >> beam.Map(lambda summary: summary))
        plan = tally | "Plan" >> beam.Map(
            apply_limits(limits, _plan_and_clear_output), schemas, options, converter, labels, claim
        )
        spec = DatasetSpec(
            options,
            converter,
            LAYOUT,
            has_classes=self._rules.classes is not None,
            deciding_options=options.deciding_options(),
            claim=claim,
        )
        return spooled.packs | WriteDataset(spec, plan, context, counts)

    def _check_is_only_writer(self, pipeline: beam.Pipeline) -> None:
        """Raise UsageError if another transform of the pipeline has the same output: each would take the other for another run."""
        writers: list[WriteTFRecordShards] = []

        class Visitor(PipelineVisitor):  # type: ignore[misc]
            """Collects the transforms of this kind, this one included."""

            def enter_composite_transform(self, transform_node: Any) -> None:
                """Collect a transform if it is of this kind."""
                if isinstance(transform_node.transform, WriteTFRecordShards):
                    writers.append(transform_node.transform)

        pipeline.visit(Visitor())
        outputs = [resolve_path(writer._options.output) for writer in writers]  # noqa: SLF001
        if outputs.count(resolve_path(self._options.output)) > 1:
            raise UsageError(
                f"WriteTFRecordShards: two transforms of the pipeline write to {self._options.output}. Name another folder, or"
                " flatten their examples into one PCollection."
            )


def _limit_options(options: ConvertOptions, *, is_local: bool) -> ConvertOptions:
    """Return the options with limits of storage requests: those of the runner's engine, or of this process for local runners."""
    if not is_local:
        return options.apply_engine_limits(is_local=False)
    limits = request_limits()
    return dataclasses.replace(options, read_threads=limits.read_threads, retry_seconds=limits.retry_seconds)


def _take_claim(output: str, claim: Claim) -> Claim:
    """Take the claim on the output and return it; a step, so that it happens when the pipeline runs."""
    take_claim(output, claim)
    return claim


def _plan_and_clear_output(
    tally: Tally,
    summaries: list[ExampleSummary],
    options: ConvertOptions,
    converter: ExampleConverter,
    labels: Labels,
    claim: Claim,
) -> Plan:
    """Return the plan of the shards, and remove the dataset in the output if it is overwritten.

    Checks the examples first, so that their errors come before the removal. A runner may repeat this step: then the old dataset is
    gone, and shards of the plan may exist.

    Args:
        tally: tally of all examples.
        summaries: summaries of the bundles.
        options: options of the conversion.
        converter: converter of the examples.
        labels: classes of the examples; empty if they have none.
        claim: claim of the run on the output.

    Raises:
        SourceError: there are no examples.
        FeatureError: the features of all examples make no schema.
        UsageError: there are too few examples for the requested shards.
        OutputError: the output has files that the run must not replace, or another run has claimed it.
    """
    try:
        check_claim(options.output, claim)
        if not tally.splits:
            raise SourceError(
                f"WriteTFRecordShards({options.output!r}): no examples, the PCollection is empty. Check"
                " the steps before."
            )
        total = ExampleSummary()
        for summary in summaries:
            total.merge(summary)
        features = converter.features(total, labels)
        plan = dataclasses.replace(
            make_plan(tally, ratios={}, options=options, overhead=0), suffix=choose_suffix(options)
        )
        storage = storage_for(options.output)
        if storage.stat(storage.join(options.output, MANIFEST_NAME)) is not None:
            if options.overwrite:
                reject_foreign_metadata(options.output, options.compression, features, has_classes=bool(labels.names))
                remove_dataset(options.output)
            else:
                reject_another_dataset(options.output, options.deciding_options(), plan.fingerprint)
                check_has_dali_index(options)
        reject_strays(options.output, plan.shard_names())
    except StorageError:
        # Another attempt may succeed.
        raise
    except TpudataError:
        # No attempt will succeed, and the temporary files are as large as the dataset.
        give_up(options.output, claim)
        raise
    return plan


def _parse_size_argument(shard_size: int | str) -> int:
    """Return the argument `shard_size` in bytes; UsageError if it is not a size."""
    if isinstance(shard_size, bool) or not isinstance(shard_size, (int, str)):
        raise UsageError(
            f"shard_size: not a size (got {shard_size!r}, expected a number of bytes, or text such as '100MB')"
        )
    # `str` raises ValueError for an int of thousands of digits; `format_value` shortens it, and `parse_size` then rejects it.
    return parse_size(shard_size if isinstance(shard_size, str) else format_value(shard_size))


def _parse_shares(split: str) -> SplitShares:
    """Return the shares of splits that a string has, or the one split that it names."""
    return SplitShares.parse(split if "=" in split else f"{split}=1")


def _parse_classes(labels: Sequence[str]) -> tuple[str, ...]:
    """Return class names as a tuple; UsageError if there are none, or one is invalid or repeated."""
    is_sequence = isinstance(labels, Sequence) and not isinstance(labels, (str, bytes))
    # labels.txt has one name in each line, so a name must be exactly one line.
    if not is_sequence or not all(isinstance(name, str) and name.splitlines() == [name] for name in labels):
        raise UsageError(f"labels: not class names (got {labels!r}, expected a sequence of str of one line each)")
    if not labels or len(set(labels)) != len(labels):
        raise UsageError(
            f"labels: classes are missing or repeated (got {list(labels)!r}, expected 1 or more distinct names)"
        )
    return tuple(labels)


def _parse_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults by full name of the feature; UsageError if they are not a dict of values by feature."""
    if not isinstance(defaults, Mapping):
        raise UsageError(f"defaults: not a dict of values by feature (got {defaults!r})")
    try:
        return flatten_features(defaults)
    except FeatureError as error:
        raise UsageError(f"defaults: {error}") from None


def _complete_schema(features: Iterable[Feature], label: str, classes: tuple[str, ...] | None) -> tuple[Feature, ...]:
    """Check the schema that was passed, and return it, with the number of `classes` at the label; UsageError if it is invalid."""
    if not isinstance(features, Iterable):
        raise UsageError(f"features: not a sequence of tpudata.format.Feature (got {features!r})")
    features_by_name = {}
    for feature in features:
        if not isinstance(feature, Feature):
            raise UsageError(f"features: not a tpudata.format.Feature (got {type(feature).__name__})")
        if feature.name in features_by_name:
            raise UsageError(f"features: {feature.name!r} appears twice. Remove one")
        features_by_name[feature.name] = feature
    if not features_by_name:
        raise UsageError("features is empty. Omit it to infer the features")
    if classes is not None:
        label_feature = Feature(label, "int64", "int64", num_classes=len(classes))
        if features_by_name.get(label) not in (label_feature, Feature(label, "int64", "int64")):
            raise UsageError(
                f"features: {label!r} is not an int64 label of {count_text(len(classes), 'class', 'classes')}, as labels= has."
                " Omit it"
            )
        features_by_name[label] = label_feature
    return tuple(features_by_name.values())
