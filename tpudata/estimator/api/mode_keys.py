"""Names of the modes: training, evaluation and prediction."""


class ModeKeys:
    """Names of the modes, as model_fn and input_fn receive them in `mode`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
