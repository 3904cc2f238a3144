"""Plan of the steps that records and batches take, in order."""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf

from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import without_autograph
from tpudata.input.elements import ensure_row_count
from tpudata.input.graph.steps.images import make_image_step, make_move_step, make_scale_step
from tpudata.input.graph.steps.mix import make_mix_step, make_transpose_step
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.graph.steps.transform import (
    check_result,
    make_batch_transform_step,
    make_parse_step,
    make_transform_step,
)
from tpudata.input.graph.steps.weights import make_record_weight_step, make_weights_check_step, make_weights_step
from tpudata.input.lists.tables import Table, find_tables
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options
from tpudata.input.text.sequence import Sequences
from tpudata.tensor_types import Element


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """Steps from decoded columns to batches: first the steps of records or rows, then the steps of whole batches.

    Records take their steps one by one if there is a crop, an augmentation or a user's transform; otherwise all rows together.

    Attributes:
        fields: fields that are read of each record.
        options: options of feeding.
        sequences: treatment of sequences of tokens.
    """

    fields: Fields
    options: Options
    sequences: Sequences

    @property
    def has_labels(self) -> bool:
        """Whether fields or targets give labels, so that elements are (features, labels); `parse` may return labels anyway."""
        return self.fields.label is not None or self.sequences.has_targets

    @property
    def parse_steps(self) -> list[Step]:
        """The step that parses serialized records with the user's `parse`, which AutoGraph converts; empty if there is none."""
        return [] if self.options.parse is None else [make_parse_step(self.options.parse)]

    @property
    def record_steps(self) -> list[Step]:
        """Steps of single records; empty if all rows are prepared together. AutoGraph converts the user's transform."""
        options = self.options
        if not options.prepares_one_by_one:
            return []
        steps: list[Step] = []
        if options.parse is None:
            steps += self._weight_steps
            steps += [
                make_image_step(self.fields, options.images, tracks_moves=bool(self._box_and_point_tables)),
                self._feed_step,
            ]
        if options.transform is not None:
            steps += self._make_move_steps(is_batch=False)
            steps += [make_transform_step(options.transform)]
        return steps

    @property
    def row_steps(self) -> list[Step]:
        """Steps of a batch, or of a part of its rows, after the record steps."""
        options = self.options
        if options.prepares_one_by_one:
            # With a transform, the record steps have already moved boxes and points, before they call it.
            return self._make_move_steps(is_batch=True) if options.transform is None else []
        # Results of the user's parse are fed unchanged.
        if options.parse is not None:
            return []
        return [*self._weight_steps, make_scale_step(self.fields, options.images), self._feed_step]

    def plan_batch(self, rows: Rows, num_records: int) -> list[Step]:
        """Return the steps of a whole batch, after the row steps.

        Args:
            rows: rows of a global batch that the host feeds; a batch has `rows.batch_size` of them.
            num_records: number of records that are fed in an epoch.
        """
        options, fields = self.options, self.fields
        steps = [make_row_count_step(rows.batch_size)]
        if options.images.mix is not None:
            steps += [make_mix_step(fields, options.images.mix)]
        if options.images.permutation is not None:
            steps += [make_transpose_step(fields, options.images.permutation)]
        if options.batch_transform is not None:
            is_weighed = not options.training or fields.weight is not None
            # Rows are not the first axis of transposed images, so their number is not checked.
            keeps_rows = is_weighed and options.images.permutation is None
            steps += [
                make_batch_transform_step(
                    options.batch_transform, rows.batch_size, has_labels=self.has_labels, keeps_rows=keeps_rows
                )
            ]
        if not options.training:
            steps += [make_weights_check_step(options.weights, num_records, rows.total)]
        return [*steps, make_weights_step(options.weights, fields.weight, has_targets=self.sequences.has_targets)]

    def check_record(self, spec: Element) -> None:
        """Check the `element_spec` of records after their steps, as `check_result` does for the user's transform."""
        check_result("transform", spec, has_labels=self.has_labels)

    @property
    def _weight_steps(self) -> list[Step]:
        """The step that takes the weights of records from their column; empty without weights."""
        return [] if self.fields.weight is None else [make_record_weight_step(self.fields.weight)]

    @property
    def _feed_step(self) -> Step:
        """The step from columns to features and labels."""
        return _make_feed_step(self.fields, self.sequences, is_bare=self.options.is_bare)

    def _make_move_steps(self, *, is_batch: bool) -> list[Step]:
        """Return the step that moves boxes and points with their image, in a list; an empty list if nothing moves."""
        least_visible = self.options.images.least_visible
        tables = self._box_and_point_tables
        return [make_move_step(tables, least_visible, is_batch=is_batch)] if tables else []

    @functools.cached_property
    def _box_and_point_tables(self) -> tuple[Table, ...]:
        """Tables of boxes and points, which follow the image's crop and augmentation."""
        return find_tables(self.fields) if self.options.images.moves_pixels else ()


def make_row_count_step(batch_size: int) -> Step:
    """Return the step that sets the number of rows in the static shapes of a batch."""

    @without_autograph
    def set_batch_size(element: Element, extras: Extras) -> tuple[Element, Extras]:
        element, extras = ensure_row_count((element, extras), batch_size)
        return element, extras

    return set_batch_size


def _make_feed_step(fields: Fields, sequences: Sequences, *, is_bare: bool) -> Step:
    """Return the step that turns columns, by the names of features, into (features, labels), or features without labels.

    Args:
        fields: fields that are read of each record.
        sequences: treatment of sequences of tokens.
        is_bare: whether features are one tensor instead of a dict.
    """

    @without_autograph
    def feed(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[Element, Extras]:
        """Fill the padding of sequences, and choose the columns that are features and labels."""
        inputs = sequences.fill_padding({field.name: columns[field.feature.name] for field in fields.inputs}, fields)
        if sequences.has_targets:
            return sequences.add_targets(inputs), extras
        features = inputs[fields.inputs[0].name] if is_bare else inputs
        element = features if fields.label is None else (features, columns[fields.label.feature.name])
        return element, extras

    return feed
