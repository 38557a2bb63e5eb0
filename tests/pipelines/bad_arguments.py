"""Command lines whose arguments are no good."""

from collections.abc import Iterator

_QUANTIZE = ["quantize", "model.keras"]
_CALIBRATE = [*_QUANTIZE, "--data", "x.npy"]
_DIAGNOSE = ["diagnose", "model.keras", "--data", "x.npy"]
_SEARCH = ["search", "model.keras", "--data", "x.npz", "--no-engines"]
_EXPORT = ["export", "model.keras", "-o", "new.onnx"]
_BUILD = ["build-engine", "model.onnx", "-o", "new.engine", "--backend", "onnxruntime"]
_FINETUNE = ["finetune", "quantized.keras", "--data", "x.npz"]
_EVALUATE = ["evaluate", "model.engine", "--data", "x.npz"]
_BENCH = ["bench-engine", "model.engine"]
_SHOW = ["config", "show"]

# Command, option, and values that must be refused.
_VALUES: list[tuple[list[str], str, list[str]]] = [
    (
        _QUANTIZE,
        "--case",
        [":", "a:", ":b", "os:path", "os:getcwd", "json:loads", "no.such:Thing", "..:x", "", "A"],
    ),
    (_QUANTIZE, "--mode", ["", "all"]),
    (_QUANTIZE, "--save-plan", ["images", "/proc/p"]),
    (_FINETUNE, "-o", ["q.h5", "no/q.keras", ".keras", "/proc/q.keras"]),
    ([*_FINETUNE, "-o", "q.keras"], "--epochs", ["0", "-1", "99999"]),
    ([*_FINETUNE, "-o", "q.keras"], "--learning-rate", ["0", "-1", "nan", "1000"]),
    ([*_FINETUNE, "-o", "q.keras"], "--batch-size", ["0", "99999999"]),
    ([*_FINETUNE, "-o", "q.keras"], "--teacher", ["x.npy", "none.keras"]),
    (_EVALUATE, "--labels", ["x.npy", "none.npy"]),
    (_EVALUATE, "--batch-size", ["0", "x"]),
    ([*_EVALUATE, "--latency"], "--seconds", ["0", "nan"]),
    (_DIAGNOSE, "--samples", ["0", "x"]),
    (_DIAGNOSE, "--measure", ["", "mse"]),
    (_DIAGNOSE, "--html", ["images", "/proc/p.html", "model.keras"]),
    (_DIAGNOSE, "--save-spec", ["images", "x.npy"]),
    (_DIAGNOSE, "--journal", ["images", "no/j", "/proc/j", "x.npy"]),
    (_SEARCH, "--max-drop", ["", "x", "-1%", "200%"]),
    (_SEARCH, "--metric", ["f1", ""]),
    (_SEARCH, "--evaluations", ["0", "x"]),
    (_SEARCH, "-o", ["images", "x.npz"]),
    (_CALIBRATE, "-o", ["q.h5", "no/q.keras", ".keras", "/proc/q.keras"]),
    ([*_CALIBRATE, "-o", "q.keras"], "--percentile", ["0", "101", "nan", "x"]),
    ([*_CALIBRATE, "-o", "q.keras"], "--batch-size", ["0", "-1", "x"]),
    (["export", "model.keras"], "-o", ["images", "/proc/x.onnx", "x.npy/y.onnx"]),
    (_EXPORT, "--opset", ["12", "99", "x"]),
    (_EXPORT, "--batch-size", ["0", "-1"]),
    (_EXPORT, "--target", ["", "x"]),
    (
        _BUILD,
        "--shapes",
        ["x", ":", "x:", "x:0", "x:1x2", "image:axb", "image:-1x8x8x3", "image:" + "9" * 99],
    ),
    (_BUILD, "--max-batch-size", ["0", "-1"]),
    (_BUILD, "--property", ["", "a", "=", "=b"]),
    (_BUILD, "--workspace", ["x", "-1", "9ZiB"]),
    (_BENCH, "--batch-size", ["0", "-5", "100000", "99999999999"]),
    (["check-engine", "model.engine"], "--onnx", ["x.npy", "none.onnx"]),
    (["check-engine", "model.engine", "--onnx", "model.onnx"], "--data", ["x.npz", "none.npy"]),
    (["check-engine", "model.engine", "--onnx", "model.onnx"], "--requests", ["0", "-1"]),
    (_BENCH, "--seconds", ["0", "-1", "nan", "x"]),
    (
        _SHOW,
        "--set",
        ["", "=", "a", "a=", "seed=x", ".=1", "a.b.c=1", "seed.x=1", "seed=" + "[" * 5_000],
    ),
    (_SHOW, "--profile", ["", "x"]),
    (["compile"], "-o", ["images", "/proc/x.yaml", "x.npy/y.yaml"]),
    (["components"], "-o", ["/proc/x", "x.npy", "x.npy/y"]),
    (["cluster", "image"], "-o", ["images", "/proc/x", "x.npy", "x.npy/y"]),
    (["config", "schema"], "-o", ["images", "/proc/x.json", "x.npy/y.json"]),
    (["analyze", "model.onnx"], "--html", ["images", "/proc/x.html"]),
    (["compare", "--runs-dir", "runs"], "", ["x", "images", "x.npy", "..", "a/../b"]),
    (["compare", "--runs-dir", "runs"], "--tracking-uri", ["x", "sqlite:////proc/x.db"]),
    (["compare", "--runs-dir", "runs"], "--html", ["images", "/proc/x.html"]),
    (["sync", "--runs-dir", "runs"], "", ["x", "images", "x.npy"]),
    (["ui", "--runs-dir", "runs"], "", ["x", "images", "x.npy"]),
    (["runs", "show", "--runs-dir", "runs"], "", ["x", "images", "x.npy"]),
    (["runs", "logs", "--runs-dir", "runs"], "", ["x", "images", "x.npy"]),
]


def arguments() -> Iterator[list[str]]:
    """Yield command lines that must be refused."""
    for command, option, values in _VALUES:
        for value in values:
            yield [*command, option, value] if option else [*command, value]
