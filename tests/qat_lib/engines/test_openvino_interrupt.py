"""Ctrl-C in a process that has used OpenVINO engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reference_networks import ResidualNetwork, write_network

SCRIPT = """
import gc, os, signal, sys
from qat_lib.engines import BuildSpec, build_engine, load_engine
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
for threads in (0, 1, 2):
    path = build_engine(sys.argv[1], BuildSpec(backend="openvino", max_batch_size=2, threads=threads)).path
    engine = load_engine(path)
    engine.infer(engine.random_batch(1))
    engine.close()
del engine
gc.collect()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupt_after_openvino_engines_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    write_network(tmp_path / "model.onnx", ResidualNetwork(), "int8")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr
