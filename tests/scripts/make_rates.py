"""Writes tests/catalogue_rates.json, and the `selftest` tables of README.md and reports/TRUST.md.

lockstep selftest --catalogue --json found.jsonl -j 2
lockstep selftest --honest 100 --json honest.jsonl -j 2
python tests/scripts/make_rates.py found.jsonl honest.jsonl

Engines that are in none of these files keep their rows. The script writes nothing if an engine has
no row, because shares of only some engines would mislead.
"""

import sys
from pathlib import Path

from lockstep.harness.catalogue.rates import PAGES, read, with_tables, write_rates
from lockstep.harness.catalogue.run import honest_engines, wrong_engines
from lockstep.harness.catalogue.trial import trial_of
from lockstep.harness.parallel.row_files import read_rows

HOME = Path(__file__).parents[2]
RATES = HOME / "tests" / "catalogue_rates.json"


def main(files: list[str]) -> None:
    found = {}
    before = read(RATES.read_text(encoding="utf-8")) if RATES.exists() else []
    if gone := [file for file in files if not Path(file).exists()]:
        sys.exit(f"no such file: {', '.join(gone)}")
    now = [trial for file in files for trial in read_rows(Path(file), trial_of)]
    for trial in (*before, *now):
        found[trial.engine, trial.model, trial.preset, trial.seed] = trial
    there = [cls.name for cls in (*wrong_engines(), *honest_engines())]
    lacking = sorted(set(there) - {engine for engine, *_ in found})
    if lacking:
        sys.exit(f"not run yet: {len(lacking)} of {len(there)} engines: {', '.join(lacking)}")
    of_now = [trial for trial in found.values() if trial.engine in there]
    RATES.write_text(write_rates(of_now), encoding="utf-8")
    kept = read(RATES.read_text(encoding="utf-8"))
    for page in PAGES:
        text = (HOME / page).read_text(encoding="utf-8")
        (HOME / page).write_text(with_tables(page, text, kept), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
