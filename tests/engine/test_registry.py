"""Families: after importing one member, the other members are found."""

import json
import subprocess
import sys

AFTER_ONE_MEMBER = {  # each runs in a process that has loaded nothing else
    "a product converts activations": (
        "import lockstep.engine.activations.f16, lockstep.engine.quants.q4_0 as q\n"
        "from lockstep.engine.ops.products import activation_format\n"
        "assert activation_format(q.Q4_0).name == 'Q8_0'"
    ),
    "an op of ggml has a meaning": (
        "import lockstep.engine.ops.ggml.elementwise\n"
        "from lockstep.engine.ops.ggml.base import meaning_of\n"
        "assert meaning_of('MUL_MAT')"
    ),
    "an op of ggml reads blocks": (
        "import lockstep.engine.quants.f32, lockstep.engine.ops.ggml.elementwise, numpy as np\n"
        "from lockstep.engine.node import Operand, wide\n"
        "raw = np.zeros(18, np.uint8)\n"
        "assert wide(Operand(name='x', type='Q4_0', ne=(32, 1, 1, 1), value=raw)).size == 32"
    ),
    "an operation of engines is computed": (
        "import lockstep.engine.ops.fused.norms\n"
        "from lockstep.engine.ops.fused.base import Call, operate\n"
        "from lockstep.golden.ops.vectors import cases_of\n"
        "case = cases_of('softmax_rows', 0)[0]\n"
        "assert operate('softmax_rows', Call(case.inputs, case.params))"
    ),
    "a type is named": (
        "import lockstep.engine.quants.f32\n"
        "from lockstep.engine.quants.base import WeightFormat\n"
        "assert WeightFormat.member('Q6_K')"
    ),
    "a suite is named": (
        "import lockstep.harness.suites.metadata\n"
        "from lockstep.harness.context.suite import Suite\n"
        "assert Suite.member('logits')"
    ),
    "a golden is named": (
        "import lockstep.golden.suites.ops\n"
        "from lockstep.golden.suites.base import Golden\n"
        "assert Golden.member('dequant')"
    ),
    "the vectors of an op are ggml's": (
        "import lockstep.golden.ops.vectors as vectors\n"
        "assert 'y' in vectors.truths('ADD', vectors.cases_of('ADD', 0)[0])"
    ),
}


EACH_IN_A_CHILD = """\
import json, os, sys
import numpy, numba  # the slow part, and in no family
failed = []
for name, code in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        exec(code)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit("; ".join(failed) or 0)
"""


def test_families_are_complete_after_importing_one_member() -> None:
    command = [sys.executable, "-c", EACH_IN_A_CHILD, json.dumps(AFTER_ONE_MEMBER)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
