"""Rewriting of calls whose arguments change with the name."""

from __future__ import annotations

import ast

from tpudata.migrate.analysis.versions import Version
from tpudata.migrate.names import UNSURE_ARGUMENTS, UNSURE_VALUES
from tpudata.migrate.rewriter import Rewriter, follows_file_api

# Summaries that take the step as an argument.
_SUMMARIES = frozenset(f"contrib.summary.{kind}" for kind in ("scalar", "histogram", "image", "audio"))
# By kind of summary, the number of arguments that stay where they were, and the name of the argument after them, which is the step
# in TensorFlow 2.
_MOVED_ARGUMENTS = {
    "scalar": (2, "family"),
    "histogram": (2, "family"),
    "image": (2, "bad_color"),
    "audio": (3, "max_outputs"),
}
_XAVIER = frozenset({"contrib.layers.xavier_initializer", "contrib.layers.xavier_initializer_conv2d"})
# A program of sessions on a TPU calls one of these functions.
_TPU_STARTS = frozenset({"contrib.tpu.initialize_system", "tpu.initialize_system"})


class CallRewriter(Rewriter):
    """A rewriter of calls whose arguments have changed."""

    def rewrite_call(self, node: ast.Call) -> None:
        """Rewrite or note a call whose arguments change with its name; leave other calls."""
        path = self.find_path(node.func)
        name = "" if path is None else ".".join(path)
        function = name.rpartition(".")[2]
        if name == "contrib.summary.record_summaries_every_n_global_steps" and node.args:
            self._rewrite_recording_interval(node)
        elif name == "contrib.summary.always_record_summaries":
            self.replace_call(node, self.spell("{tf2}.summary.record_if(True)"))
        elif name == "contrib.summary.never_record_summaries":
            self.replace_call(node, self.spell("{tf2}.summary.record_if(False)"))
        elif name in _SUMMARIES:
            self._rewrite_summary(node, function)
        # `uniform` is the first argument.
        elif name in _XAVIER and (node.args or _find_keyword(node, "uniform") is not None):
            self.note(node, f"{function} has become glorot_uniform_initializer(seed, dtype), which is uniform.")
        elif name.endswith("cluster_resolver.TPUClusterResolver"):
            self._note_empty_tpu_name(node)
        elif name in _TPU_STARTS and not self.plan.uses_estimator:
            self.note(
                node,
                "sessions on a TPU ended with TensorFlow's TPU runtime. Run functions by tpudata.tpu_system(), or move the model"
                " into a model_fn, and train it by tpudata.estimator.TPUEstimator.",
            )
        # A name with `compat` in it shows which release is meant.
        elif name in UNSURE_VALUES and self.plan.version is Version.MAYBE_V1 and follows_file_api(node.func):
            self.note(node, UNSURE_VALUES[name])
        elif name in UNSURE_ARGUMENTS:
            self._note_unsure_call(node, name)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "apply" and len(node.args) == 1:
            self._rewrite_batch_and_drop_remainder(node, node.func)

    def _rewrite_recording_interval(self, node: ast.Call) -> None:
        """Rewrite `record_summaries_every_n_global_steps(n)` to a `record_if` that is true in every n-th step."""
        interval = self.rewrite_operand(node.args[0])
        step_argument = node.args[1] if len(node.args) > 1 else _find_keyword(node, "global_step")
        if step_argument is None:
            step = self.spell("{v1}.train.get_or_create_global_step()")
        else:
            step = self.rewrite_operand(step_argument)
        self.replace_call(node, self.spell(f"{{tf2}}.summary.record_if({{v1}}.equal({step} % {interval}, 0))"))

    def _note_empty_tpu_name(self, node: ast.Call) -> None:
        """Note a TPUClusterResolver for a TPU that may have an empty name, which meant the TPU of this machine."""
        tpu = node.args[0] if node.args else _find_keyword(node, "tpu")
        choices = [tpu]
        if isinstance(tpu, ast.IfExp):
            choices = [tpu.body, tpu.orelse]
        elif isinstance(tpu, ast.BoolOp):
            choices = list(tpu.values)
        if any(isinstance(choice, ast.Constant) and choice.value == "" for choice in choices):
            self.note(
                node, "TPUClusterResolver('') looks for a TPU named ''. Pass tpu='local' for the TPU of this machine."
            )

    def _note_unsure_call(self, node: ast.Call, name: str) -> None:
        """Note a call whose positional arguments mean something else in each API, if the file does not show which API it uses."""
        # Number of leading arguments that mean the same in both APIs, and the note on a call with more.
        max_positional, text = UNSURE_ARGUMENTS[name]
        is_undecided = self.plan.version in (Version.UNDECIDED, Version.MAYBE_V1, Version.MAYBE_V2)
        if len(node.args) > max_positional and is_undecided:
            self.note(node, text)

    def _rewrite_batch_and_drop_remainder(self, node: ast.Call, function: ast.Attribute) -> None:
        """Rewrite `.apply(tf.contrib.data.batch_and_drop_remainder(n))` to `.batch(n, drop_remainder=True)`.

        Other calls of `apply` are left unchanged.
        """
        inner_call = node.args[0]
        if isinstance(inner_call, ast.Call) and self.find_path(inner_call.func) == (
            "contrib",
            "data",
            "batch_and_drop_remainder",
        ):
            size_arguments = [*inner_call.args, *(keyword.value for keyword in inner_call.keywords)]
            size = ", ".join(map(self.rewrite_part, size_arguments))
            # From the end of the dataset's expression: `.apply(...)`.
            start, end = self.edits.find_end(function.value), self.edits.find_end(node)
            self.edits.replace_range(start, end, f".batch({size}, drop_remainder=True)")
            self.freeze(inner_call)

    def _rewrite_summary(self, node: ast.Call, kind: str) -> None:
        """Rename the keywords of a summary of a kind, such as `scalar`; note a missing step and arguments that are gone."""
        for keyword in node.keywords:
            if keyword.arg == "tensor":
                self._rename_keyword(keyword, "data")
            elif keyword.arg == "max_images":
                self._rename_keyword(keyword, "max_outputs")
            elif keyword.arg in ("family", "bad_color"):
                fix = "Remove it, or put it into the name." if keyword.arg == "family" else "Remove it."
                self.note(keyword.value, f"summary.{kind} takes no {keyword.arg} any more. {fix}")
        if _find_keyword(node, "step") is None:
            self.note(node, f"summary.{kind} needs a step today. Pass step=.")
        # Number of arguments that keep their positions, and the old name of the next one.
        kept_count, old_name = _MOVED_ARGUMENTS[kind]
        if len(node.args) > kept_count:
            self.note(
                node,
                f"summary.{kind}: argument {kept_count + 1} was {old_name} and is step today. Pass it and those after it by"
                " keyword.",
            )

    def _rename_keyword(self, keyword: ast.keyword, name: str) -> None:
        start = self.edits.find_start(keyword)
        self.edits.replace_range(start, start + len(keyword.arg or ""), name)


def _find_keyword(node: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a call's keyword argument; None if it is not passed."""
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)
