"""History of a model's folder: the configurations under which it was trained, and the position of each in the data.

`train_history.json` is {"sections": [{"first_step", "position", "order_batch_size", "configuration"}, ...]}, in the order in which
the sections were written. A section is in force from its first step on, until a later one begins. The file also keeps a section
that trained nothing, because its run was killed before the first checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tpudata.console.tables import count_text
from tpudata.errors import TpudataError, UsageError
from tpudata.storage import storage_for
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.record import CONFIG_NAME, Configuration, write_json

HISTORY_NAME = "train_history.json"
# Options that do not change what is trained.
_IGNORED_OPTIONS = {
    "model_dir",
    "mode",
    "allow_other_data",
    "checkpoint",
    "output",
    "prompt",
    "num_predictions",
    "continuous",
    "continuous_timeout",
    "rehearse",
    "tpu",
    "tpu_effort",
    "feeding",
    "json",
    "coordinator_address",
    "process_id",
}


@dataclasses.dataclass(frozen=True)
class Section:
    """Steps that are trained under one configuration.

    Attributes:
        first_step: number of steps that are done when the section begins.
        position: number of records in the order of training that come before the section's first batch.
        order_batch_size: batch size of the order that the records follow; batches of a different size are cut from this order.
        configuration: the record of the run, see tpudata.train.outputs.record.
    """

    first_step: int
    position: int
    order_batch_size: int
    configuration: Configuration

    @property
    def batch_size(self) -> int:
        """Number of records in a step."""
        return int(self.configuration["options"]["batch_size"])

    def compute_position(self, step: int) -> int:
        """Return the number of records in the order that come before the batch after `step` steps."""
        return self.position + (step - self.first_step) * self.batch_size


@dataclasses.dataclass(frozen=True)
class History:
    """All sections of a model's folder, in the order in which they were written."""

    sections: tuple[Section, ...] = ()

    @classmethod
    def read(cls, model_dir: str) -> History:
        """Read the history of a folder; without train_history.json, the one section of train_config.json; empty if neither exists.

        Raises:
            TpudataError: a file is damaged.
            StorageError: a file cannot be read.
        """
        storage = storage_for(model_dir)
        for name, parse in ((HISTORY_NAME, _parse_sections), (CONFIG_NAME, _parse_only_section)):
            path = storage.join(model_dir, name)
            if storage.stat(path) is None:
                continue
            try:
                return cls(parse(json.loads(storage.read(path))))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise TpudataError(
                    f"{path} is damaged, so the records of the next batch are unknown. Restore it; or remove it, and training "
                    "begins at the record of the step times the batch size."
                ) from error
        return cls()

    def find_previous_section(self, step: int) -> Section | None:
        """Return the section that trained step `step`; None if no section begins before it."""
        return next((section for section in reversed(self.sections) if section.first_step < step), None)

    def find_section(self, step: int, configuration: Configuration) -> Section:
        """Return the section that trains under a configuration after `step` steps: the current one if it fits, or a new one."""
        # JSON has no tuples; without them, the configuration can equal one that was read from the file.
        configuration = json.loads(json.dumps(configuration))
        current = next((section for section in reversed(self.sections) if section.first_step <= step), None)
        # Sections of later steps are from a training whose checkpoints are gone.
        has_later_sections = any(section.first_step > step for section in self.sections)
        if (
            current is not None
            and not has_later_sections
            and not list_differences(current.configuration, configuration)
        ):
            return current
        batch_size = int(configuration["options"]["batch_size"])
        previous = self.find_previous_section(step)
        if previous is None:
            # A checkpoint without a history: assume that its training had this batch size from the start.
            return Section(step, step * batch_size, order_batch_size=batch_size, configuration=configuration)
        if not is_same_data(previous.configuration, configuration):
            # Other records are read from the first on.
            return Section(step, position=0, order_batch_size=batch_size, configuration=configuration)
        is_same_order = _get_seed(previous.configuration) == _get_seed(configuration)
        order_batch_size = previous.order_batch_size if is_same_order else batch_size
        return Section(step, previous.compute_position(step), order_batch_size, configuration)

    def write(self, model_dir: str, section: Section) -> None:
        """Add a section to the file, unless it is already recorded."""
        if section in self.sections:
            return
        sections = [dataclasses.asdict(stored_section) for stored_section in (*self.sections, section)]
        write_json(model_dir, HISTORY_NAME, {"sections": sections})


def is_same_data(before: Configuration, now: Configuration) -> bool:
    """Return whether two configurations train on the same records."""
    # Configurations of earlier versions have no digest.
    keys = ("split_digest",) if "split_digest" in before["dataset"] else ("fingerprint", "records")
    return all(before["dataset"][key] == now["dataset"][key] for key in keys)


def check_same_data(options: TrainOptions, before: Configuration, now: Configuration, step: int) -> None:
    """Check that training continues on the records of the previous section, unless the user allows other records.

    Args:
        options: options of the run.
        before: configuration of the previous section.
        now: configuration of this run.
        step: the global step from which training continues, for the message.

    Raises:
        UsageError: the records differ from the previous section's.
    """
    if options.allow_other_data or is_same_data(before, now):
        return
    data_before, data_now = _describe_data(before), _describe_data(now)
    raise UsageError(
        f"{options.model_dir}: up to step {step} it was trained on different records (got {data_now}, expected {data_before})."
        " Pass the dataset of before, another --model-dir, or --allow-other-data to continue on this one."
    )


def _describe_data(configuration: Configuration) -> str:
    """Describe the data: the path of the dataset, the number of records of the training split, and its digest."""
    options, dataset = configuration["options"], configuration["dataset"]
    records_text = count_text(dataset["records"].get(options["train_split"], 0), "record")
    digest = dataset.get("split_digest", dataset["fingerprint"])
    return f"{options['data']} with {records_text} in {options['train_split']}, {digest}"


def list_differences(before: Configuration, now: Configuration) -> list[str]:
    """Return a line for each setting that differs between two configurations: `NAME=BEFORE -> NOW`."""
    lines = []
    for group, prefix in (("options", ""), ("params", "params."), ("dataset", "dataset."), ("versions", "versions.")):
        old, new = before.get(group, {}), now.get(group, {})
        for name in [*new, *(name for name in old if name not in new)]:
            # The group "params" has all params; the option "params" has only the user's.
            if group == "options" and name in {*_IGNORED_OPTIONS, "params"}:
                continue
            # A setting that an old record lacks counts as unset if it is None, False or 0 now, unless the user has set the param.
            is_own_param = group == "params" and name in now["options"].get("params", {})
            is_unset = name not in old and new[name] in (None, False) and not is_own_param
            if old.get(name) != new.get(name) and not is_unset:
                lines.append(f"{prefix}{name}={json.dumps(old.get(name))} -> {json.dumps(new.get(name))}")
    return lines


def explain_differences(before: Section, now: Section) -> str:
    """Describe the settings that differ from the previous section, and the effect on the records; "" if no setting differs."""
    lines = list_differences(before.configuration, now.configuration)
    if not lines:
        return ""
    position = f"record {now.position:,} of its order" if now.position else "its first record"
    if not is_same_data(before.configuration, now.configuration):
        lines.append(f"the other dataset is read from {position} on")
    elif _get_seed(before.configuration) != _get_seed(now.configuration):
        lines.append(
            "the records have a different order from here on: in this epoch, some come twice and others not at all"
        )
    elif before.batch_size != now.batch_size:
        lines.append(
            f"the order of the records stays that of batches of {now.order_batch_size}, and the next batch begins at {position}:"
            " no record is repeated or lost"
        )
    if _get_kept_records(before.configuration) != _get_kept_records(now.configuration):
        lines.append("the records in quarantine differ: in this epoch, some may come twice and others not at all")
    heading = f"training continues after step {now.first_step} with other settings (before -> now):"
    return "\n  ".join((heading, *lines))


def _get_seed(configuration: Configuration) -> object:
    return configuration["options"]["seed"]


def _get_kept_records(configuration: Configuration) -> object:
    return configuration["dataset"].get("kept_records")


def _parse_sections(content: Any) -> tuple[Section, ...]:
    """Return the sections of train_history.json.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: the content is malformed.
    """
    sections = []
    for entry in content["sections"]:
        section = Section(
            entry["first_step"],
            entry["position"],
            entry["order_batch_size"],
            _parse_configuration(entry["configuration"]),
        )
        # `type`, since a bool is also an int; numbers from 2**53 on are not exact in all readers of JSON.
        numbers = (section.first_step, section.position, section.order_batch_size)
        if not all(type(number) is int and 0 <= number < 2**53 for number in numbers) or section.order_batch_size < 1:
            raise ValueError("a number is out of range")
        sections.append(section)
    return tuple(sections)


def _parse_only_section(content: Any) -> tuple[Section, ...]:
    """Return the one section of a train_config.json, for folders of versions that wrote no history.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: the content is malformed.
    """
    configuration = _parse_configuration(content)
    batch_size = int(configuration["options"]["batch_size"])
    return (Section(first_step=0, position=0, order_batch_size=batch_size, configuration=configuration),)


def _parse_configuration(configuration: Any) -> Configuration:
    """Return a configuration that was read from a file, checked.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is malformed.
    """
    options, dataset = configuration["options"], configuration["dataset"]
    has_valid_numbers = (
        isinstance(options["batch_size"], int)
        and 0 < options["batch_size"] < 2**31
        and isinstance(options["seed"], int)
    )
    has_valid_texts = isinstance(options["data"], str) and isinstance(options["train_split"], str)
    if not (has_valid_numbers and has_valid_texts and isinstance(dataset["records"], dict)):
        raise ValueError("a value has another type")
    # Raises if a key is missing, or if params or versions are not mappings.
    _ = dataset["fingerprint"], configuration["params"].items(), configuration["versions"].items()
    return dict(configuration)
