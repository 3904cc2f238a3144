"""A rehearsal for a TPU: trace a mode's step, compile it with XLA on this machine, and list what a TPU would reject.

    input_fn -> its elements -> the scratch graph of model_fn -> its operations, one by one -> XLA -> libtpu

With a slice, libtpu continues from what XLA has lowered. Every stage adds to one list and repairs the problem for the next stage: a
batch size is rounded up, an operation that XLA lacks is cut out of the graph, and so on. Nothing is run: no data is read, and no
variable gets a value of the model.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import tensorflow as tf

from tpudata.checks import require_one_of
from tpudata.devices.errors import ModelFnError
from tpudata.devices.graphs.graph_walk import walk_graph
from tpudata.devices.processes.topology import Topology
from tpudata.devices.tpu_compiler.compiler import explain_missing_compiler
from tpudata.devices.tpu_compiler.step_cost import StepCost
from tpudata.devices.tpu_compiler.topologies import TPUSlice
from tpudata.error_text.libraries import EAGER_CAPTURE
from tpudata.error_text.lines import first_line
from tpudata.errors import UsageError
from tpudata.estimator.api.findings import Finding, Report
from tpudata.estimator.api.mode_keys import MODES, ModeKeys
from tpudata.estimator.api.spec import (
    EstimatorSpec,
    HostTensors,
    ModelSpec,
    TPUEstimatorSpec,
    get_eval_metrics,
    get_host_call,
    get_metric_ops,
)
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.feeding.deployment import check_batch_size
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.blueprint import Blueprint, trace_function
from tpudata.estimator.tpu_check.compilation import StepParts, can_compile_here, compile_step
from tpudata.estimator.tpu_check.input import check_input
from tpudata.estimator.tpu_check.memory import check_memory, check_next_batches
from tpudata.estimator.tpu_check.operations import Roots, StepGraph, check_operations, find_code_line
from tpudata.estimator.tpu_check.result import Rehearsal
from tpudata.estimator.tracing.differences import require_cross_shard
from tpudata.estimator.tracing.effects import list_training_effects
from tpudata.estimator.tracing.host_call import call_host_function
from tpudata.estimator.tracing.metrics import find_metric_updates
from tpudata.estimator.tracing.optimizer import DENSE_GRADIENTS
from tpudata.estimator.tracing.replica_values import concatenate_specs
from tpudata.estimator.tracing.traced_model import TracedModel, trace_model
from tpudata.tensor_types import Specs, Tensors

_DEFAULT_REPLICAS = 8
_MAX_STEPS = 1000
_T = TypeVar("_T")


def rehearse(
    runtime: Runtime, input_fns: Mapping[str, InputFunction], tpu: TPUSlice | None = None, effort: str = "quick"
) -> Rehearsal:
    """Rehearse the modes of `input_fns`; see `check_tpu_compatibility`."""
    num_replicas = _count_replicas(runtime, tpu)
    findings: list[Finding] = []
    metric_names: tuple[str, ...] = ()
    costs: tuple[StepCost, ...] = ()
    for mode, input_fn in input_fns.items():
        require_one_of("rehearse: a mode", mode, MODES)
        mode_rehearsal = _ModeRehearsal(runtime, mode, num_replicas, tpu, effort)
        mode_rehearsal.rehearse(input_fn)
        findings += dict.fromkeys(mode_rehearsal.findings)  # Without repetitions.
        metric_names += tuple(mode_rehearsal.metric_names)
        costs += tuple(mode_rehearsal.costs)
    return Rehearsal(tuple(findings), metric_names, costs)


def _count_replicas(runtime: Runtime, tpu: TPUSlice | None) -> int:
    """Return the number of replicas to rehearse with: one for each device of the slice; without a slice, num_shards or 8.

    Raises:
        UsageError: num_shards is not the slice's number of devices.
    """
    num_shards = runtime.config.tpu_config.num_shards
    if tpu is None:
        return num_shards or _DEFAULT_REPLICAS
    if num_shards not in (None, tpu.replicas):
        raise UsageError(
            f"tpu={tpu.name!r}: TPUConfig(num_shards={num_shards}) is for another TPU (got {num_shards}, expected {tpu.replicas} "
            "devices). Omit num_shards."
        )
    return tpu.replicas


class _ModeRehearsal:
    """Rehearsal of one mode.

    Attributes:
        findings: findings so far, in order; some may be repeated.
        metric_names: names of the metrics, in EVAL.
        costs: the cost of the step in a list; empty if it was not compiled for a slice.

    Args:
        runtime: runtime of the estimator, whose devices are not used.
        mode: a value of ModeKeys.
        num_replicas: number of replicas to trace the step for.
        tpu: the slice to compile the step for; None to compile it only with XLA on this machine.
        effort: effort of the TPU's compiler, a key of EFFORTS.
    """

    def __init__(self, runtime: Runtime, mode: str, num_replicas: int, tpu: TPUSlice | None, effort: str) -> None:
        self.findings: list[Finding] = []
        self.metric_names: list[str] = []
        self.costs: list[StepCost] = []
        self._tpu = tpu
        self._effort = effort
        self._mode = mode
        self._num_replicas = num_replicas
        user_model = runtime.user_model
        size = user_model.batch_sizes[mode]
        topology = Topology(num_replicas, is_tpu=True)
        try:
            check_batch_size(mode, topology, runtime.config.tpu_config, size)
        except ValueError as error:
            self._report("batch size", str(error))
            # Continue with the next size that can be split.
            size = math.ceil((size or 1) / num_replicas) * num_replicas
        batch_sizes = {**user_model.batch_sizes, mode: size}
        self._runtime = Runtime(dataclasses.replace(user_model, batch_sizes=batch_sizes), lambda: topology)

    def _report(self, where: str, what: str, fix: str = "", *, is_rejected: bool = True) -> None:
        """Add a finding about this mode; the arguments are the fields of `Finding` after `mode`."""
        self.findings.append(Finding(self._mode, where, what, fix, is_rejected))

    def rehearse(self, input_fn: InputFunction) -> None:
        """Check the input, the graph, the memory, the variables and the compiled step, and add the findings."""
        try:
            # The data of all calls has the same specs, so the first call's is enough.
            deployment = self._runtime.make_deployment(self._mode)
            dataset = self._runtime.user_model.call_input(input_fn, deployment, deployment.list_calls()[0])
        except (TypeError, ValueError) as error:
            self._report("input_fn", str(error))
            return
        specs = check_input(dataset.element_spec, deployment, self._runtime.user_model.batch_axis, self._report)
        traced = self._trace(specs)
        if traced is None:
            return
        blueprint, spec = traced.blueprint, traced.spec
        if self._mode == ModeKeys.TRAIN:
            try:
                require_cross_shard(blueprint)
            except ModelFnError as error:
                self._report("model_fn", str(error))
        if self._mode == ModeKeys.EVAL:
            host_metrics = self._trace_host_function(blueprint, "eval_metrics", get_eval_metrics(spec))
            self.metric_names += [*get_metric_ops(spec), *(host_metrics or {})]
        if self._mode != ModeKeys.PREDICT:
            self._trace_host_function(blueprint, "host_call", get_host_call(spec))
        graph = StepGraph(blueprint, self._find_roots(blueprint, spec))
        unsupported_operations = check_operations(graph, self._report)
        check_memory(graph, specs, self._tpu, self._report)
        # The functions report what they find; `check_input` has reported shapes that are not static.
        if (
            _check_variables(blueprint, self._report)
            and all(leaf is None or leaf.shape.is_fully_defined() for leaf in tf.nest.flatten(specs))
            and can_compile_here(graph, self._report)
        ):
            self._compile(traced, graph, unsupported_operations)

    def _compile(self, traced: TracedModel, graph: StepGraph, unsupported_operations: set[tf.Operation]) -> None:
        """Compile the step with XLA on this machine and then, for a slice, with the TPU's compiler; report what they reject.

        Args:
            traced: the traced model.
            graph: graph of the step.
            unsupported_operations: operations that XLA is known not to support.
        """
        tpu = self._tpu
        # Without libtpu, XLA on this machine takes its place.
        missing_reason = None if tpu is None else explain_missing_compiler()
        if tpu is not None and missing_reason is not None:
            what = f"the step is not compiled for it: {missing_reason.rstrip('.')}"
            self._report(f"tpu={tpu.name!r}", what, is_rejected=False)
            tpu = None
        parts = StepParts(traced, graph)
        if tpu is None:
            compile_step(parts, unsupported_operations, self._report, "optimized_hlo")
            return
        part = compile_step(parts, unsupported_operations, self._report, "stablehlo")
        if part is None:
            return
        from tpudata.estimator.tpu_check.tpu_step import TPUCompilation  # It imports jax.

        config = self._runtime.config.tpu_config
        # A loop that is limited by time may have any number of steps: 1000 are compiled, or as many as one stack of batches takes.
        max_steps = _MAX_STEPS if config.loop_seconds is not None else int(config.iterations_per_loop)
        compilation = TPUCompilation(tpu, self._effort, max_steps).compile(parts, part, self._report)
        if compilation is not None:
            loop, compiled = compilation
            size = self._runtime.user_model.batch_sizes[self._mode]
            cost = StepCost(
                mode=self._mode,
                tpu=tpu,
                effort=self._effort,
                batch_size=size or 0,  # 0 if it is unknown.
                loop_steps=loop.steps,
                batch_bytes=loop.batch_bytes,
                compiled=compiled,
            )
            self.costs.append(cost)
            check_next_batches(cost, self._report)

    def _trace(self, specs: tuple[Specs, Specs]) -> TracedModel | None:
        """Call model_fn in a scratch graph, and return the traced model; report a finding and return None if it raises an error."""

        def call_model(features: Tensors, labels: Tensors) -> ModelSpec:
            # As in a run on a TPU, where even a single core sums dense gradients.
            tf.compat.v1.get_default_graph().add_to_collection(DENSE_GRADIENTS, True)
            return self._runtime.user_model.call_model(features, labels, self._runtime.make_deployment(self._mode))

        try:
            seed = self._runtime.config.tf_random_seed
            return trace_model(call_model, self._mode, specs, seed, num_replicas=self._num_replicas)
        except Exception as error:  # Any error of model_fn would stop a run.
            self._report("model_fn", *_explain(error))
            return None

    def _trace_host_function(
        self, blueprint: Blueprint, field: str, pair: tuple[Callable[..., _T], HostTensors] | None
    ) -> _T | None:
        """Call metric_fn or host_fn with the tensors of all replicas in a scratch graph, and report scalar tensors and its errors.

        Args:
            blueprint: blueprint of model_fn.
            field: name of the spec's field.
            pair: the field, (function, tensors), or None.

        Returns:
            The function's result; None without a function, or if it raises an error, which is reported.
        """
        if pair is None:
            return None
        function, tensors = pair
        pipeline = self._runtime.make_deployment(self._mode).pipeline
        # With BROADCAST, all replicas get the same rows, and only one replica's tensors are taken.
        num_concatenated = 1 if pipeline is InputPipelineConfig.BROADCAST else self._num_replicas
        with blueprint.graph.as_default():
            tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
        for tensor in tf.nest.flatten(tensors):
            if tensor.shape.rank == 0:
                self._report(
                    f"TPUEstimatorSpec({field}=...)",
                    f"{tensor.name!r} is a scalar, and the tensors of all cores are concatenated along their first axis",
                    "reshape it to [1], or use a value for each row",
                )
        specs = concatenate_specs(tensors, num_concatenated)
        seed = self._runtime.config.tf_random_seed
        try:
            host_blueprint = trace_function(
                lambda arguments: call_host_function(function, arguments, seed), (specs,), seed
            )
        except Exception as error:  # Any error would stop a run.
            self._report(f"TPUEstimatorSpec({field}=...)", *_explain(error))
            return None
        result: _T = host_blueprint.result
        return result

    def _find_roots(self, blueprint: Blueprint, spec: TPUEstimatorSpec | EstimatorSpec) -> Roots:
        """Return the results that a step computes on a replica, and the operations that it runs for their effect."""
        updates: list[tf.Operation] = []
        if self._mode == ModeKeys.PREDICT:
            results = list(tf.nest.flatten(spec.predictions))
        else:
            results = [spec.loss, *tf.nest.flatten(_get_tensors(get_host_call(spec)))]
        if self._mode == ModeKeys.EVAL:
            results += tf.nest.flatten(_get_tensors(get_eval_metrics(spec)))
            updates += find_metric_updates(get_metric_ops(spec), blueprint)
        if self._mode == ModeKeys.TRAIN:
            updates += list_training_effects(blueprint, ())
        with blueprint.graph.as_default():
            tensors = [tf.convert_to_tensor(tensor) for tensor in results]
        return Roots(tensors, updates)


def _get_tensors(pair: tuple[object, HostTensors] | None) -> HostTensors:
    """Return the tensors of a (function, tensors) field of the spec; () if it is None."""
    _, tensors = pair or (None, ())
    return tensors


def _check_variables(blueprint: Blueprint, report: Report) -> bool:
    """Report variables that cannot be made before the first step; return whether all can."""
    batch_operations = {placeholder.op for placeholder in blueprint.placeholders}
    can_make_all_variables = True
    for info in blueprint.variables:
        initial_value = blueprint.get_initial_value(info)
        if _find_ancestors(initial_value.op) & batch_operations:
            can_make_all_variables = False
            report(
                find_code_line(initial_value.op),
                f"the initial value of the variable {info.name!r} depends on the batch, and variables are made before the first "
                "one",
                "use an initializer that needs no batch",
            )
        if not initial_value.shape.is_fully_defined():
            can_make_all_variables = False
            report(
                find_code_line(initial_value.op),
                f"the variable {info.name!r} has the shape {initial_value.shape}",
                "use a static shape",
            )
    return can_make_all_variables


def _find_ancestors(operation: tf.Operation) -> set[tf.Operation]:
    """Return an operation and all operations whose results it needs."""
    return {*walk_graph([operation], lambda ancestor: [tensor.op for tensor in ancestor.inputs])}


def _explain(error: Exception) -> tuple[str, str]:
    """Return (what, fix) of a finding about an error of model_fn, metric_fn or host_fn."""
    if EAGER_CAPTURE.search(str(error)):
        return (
            "it uses a variable, or a layer with variables, that was made outside of it: no checkpoint would contain it, and no "
            "core of a TPU has it",
            "make variables and layers inside model_fn, at every call",
        )
    fix = "" if isinstance(error, ModelFnError) else "see the text of the error, which stops training on every device"
    return f"{type(error).__name__}: {first_line(str(error))}", fix
