"""Several processes that train one model: how they find each other, and who writes.

The contract, on one machine and on a cluster:

* A training step (``train_baseline``, ``finetune_qat``) whose environment has ``TF_CONFIG`` with N
  workers takes part as that worker, whatever ``training.workers`` says::

      TF_CONFIG={"cluster": {"worker": ["host0:2222", "host1:2222"]},
                 "task": {"type": "worker", "index": 1}}

  Each worker needs the same arguments (settings, seed, inputs), a host name that the others can
  reach, and the port of its own entry free. All start within ``START_PATIENCE`` seconds.
* Without ``TF_CONFIG`` a step with ``workers`` above 1 is worker 0 itself, and starts the others on
  this machine, on loopback.
* Worker 0 alone looks into the step store, publishes the output, tracks, and reports progress. The
  others write into temporary folders only, remove them, and exit with code 0.
* A worker that dies ends all others: each exits with a code other than 0, worker 0 with one error
  event that names what happened. Started again, all of them, the step goes on from its last
  checkpoint.
* Worker 0 alone reads and writes checkpoints. They lie in the folder that ``QATLINE_CHECKPOINTS``
  names, below it in ``<step>/<key of the execution>``; without it, in the step store. On a cluster
  the folder must outlive the pod of worker 0.
* A global batch is what one worker would have had: ``batch_size`` does not change with N.
"""

from __future__ import annotations

TF_CONFIG_VARIABLE = "TF_CONFIG"
CHECKPOINTS_VARIABLE = "QATLINE_CHECKPOINTS"
START_PATIENCE = 600.0
"""Seconds that workers wait for each other at the start."""
