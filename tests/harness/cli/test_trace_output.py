"""`lockstep trace -o FOLDER` does not overwrite files of other programs."""

import json
from pathlib import Path

from tests.command_line import Lockstep


def test_trace_replaces_its_own_dump_and_no_other(lockstep: Lockstep, tmp_path: Path) -> None:
    trace = ("trace", "builtin:f32", "--tokens", 2, "--quiet", "-o")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "index.json").write_text('{"tensors": []}')
    code, _, err = lockstep(*trace, theirs)
    assert (code, "holds index.json, which lockstep trace did not write" in err) == (2, True)
    assert (theirs / "index.json").read_text() == '{"tensors": []}'
    (theirs / "index.json").rename(theirs / "tensors.safetensors")
    assert lockstep(*trace, theirs)[0] == 2
    for _ in range(2):
        assert lockstep(*trace, tmp_path / "ours")[0] == 0
    assert json.loads((tmp_path / "ours" / "index.json").read_text())["tensors"]
    code, _, err = lockstep(*trace, tmp_path / "ours" / "index.json")
    assert (code, "is not a folder" in err) == (2, True)
