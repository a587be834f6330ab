"""From private statistics to a table and a forest plot for a paper: hospital admissions, and who is back in a month.

``python examples/paper_table.py OUT`` runs the commands that a study coordinator would type, on a synthetic table: it
describes it, drafts a study from what was released, trains it with intervals, and evaluates it on other rows. OUT then
has ``table.md``, ``coefficients.png``, ``statistics.png`` and ``evaluation.json``. It takes about half a minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

DICTIONARY = """\
name,kind,low,high,values,description,transform
age,number,18,100,,years at admission,
sex,category,,,female|male,,
smoker,boolean,,,,smokes now,
ward,category,,,surgery|medicine|cardiology,,
bmi,number,12,60,,kg per square metre,
creatinine,number,0.2,10,,mg per decilitre,log
readmitted,category,,,no|yes,back within 30 days,
"""


def write_table(path: Path, n_rows: int, seed: int) -> None:
    """Synthetic admissions: older people, smokers and high creatinine come back more often; 8% have no BMI."""
    rng = np.random.default_rng(seed)
    age, smoker = rng.normal(62.0, 14.0, n_rows), rng.random(n_rows) < 0.3
    ward = rng.choice(["surgery", "medicine", "cardiology"], n_rows, p=[0.3, 0.5, 0.2])
    bmi, creatinine = rng.normal(27.0, 5.0, n_rows), np.exp(rng.normal(0.1, 0.4, n_rows))
    score = -1.1 + 0.035 * (age - 62.0) + 0.5 * smoker + 0.3 * (ward == "cardiology")
    score = score + 0.8 * (np.log(creatinine) - 0.1) + 0.02 * (bmi - 27.0)
    back, unknown = rng.random(n_rows) < 1.0 / (1.0 + np.exp(-score)), rng.random(n_rows) < 0.08
    sex, lines = rng.choice(["female", "male"], n_rows), ["age,sex,smoker,ward,bmi,creatinine,readmitted"]
    for i in range(n_rows):
        weight = "" if unknown[i] else f"{bmi[i]:.1f}"
        words = ("yes" if smoker[i] else "no", ward[i], weight, f"{creatinine[i]:.2f}", "yes" if back[i] else "no")
        lines.append(f"{age[i]:.0f},{sex[i]},{','.join(words)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(out: Path, n_rows: int = 12_000) -> None:
    out.mkdir(parents=True, exist_ok=True)
    command = shutil.which("dpadmm", path=str(Path(sys.executable).parent)) or "dpadmm"

    def dpadmm(*words: str) -> str:
        done = subprocess.run(
            [command, *words], cwd=out, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}
        )
        print("$ dpadmm", *words)
        print(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr
        return done.stdout

    write_table(out / "admissions.csv", n_rows, seed=1)
    write_table(out / "later.csv", n_rows // 3, seed=2)
    (out / "dictionary.csv").write_text(DICTIONARY, encoding="utf-8")

    # What does the table hold? Bounds and values are public, from the dictionary; ε = 0.5 is spent on counts.
    dpadmm("study", "new", "statistics.toml", "--kind", "statistics", "--from-dictionary", "dictionary.csv")
    text = (out / "statistics.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^# tables = .*", 'tables = [["smoker", "readmitted"], ["ward", "readmitted"]]', text)
    text = re.sub(r"(?m)^epsilon = .*", "epsilon = 0.5", text)
    (out / "statistics.toml").write_text(text, encoding="utf-8")
    dpadmm("describe", "statistics.toml", "--data", "admissions.csv", "-o", "statistics.json", "--figure", ".")

    # A study whose centers and scales come from that release, with intervals, for ε = 2
    dpadmm("study", "new", "study.toml", "--from-statistics", "statistics.json", "--label", "readmitted")
    text = (out / "study.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^# inference = .*", "inference = true", text)
    text = re.sub(r"(?m)^epsilon = .*", "epsilon = 2.0", text)
    (out / "study.toml").write_text(text, encoding="utf-8")
    dpadmm("study", "check", "study.toml")
    dpadmm("train", "study.toml", "--data", "admissions.csv", "-o", "model.dpadmm")
    dpadmm("explain", "model.dpadmm", "--figure", ".", "--table", "table.md")

    # How good is it on people that it has not seen? ε = 1 of theirs
    evaluation = ("--epsilon", "1", "--delta", "1e-5", "-o", "evaluation.json")
    dpadmm("evaluate", "model.dpadmm", "--data", "later.csv", *evaluation)

    described, evaluated = (json.loads((out / f"{name}.json").read_text()) for name in ("statistics", "evaluation"))
    print((out / "table.md").read_text(encoding="utf-8"))
    print("Private statistics:", described["privacy_sentence"])
    auc = evaluated["metrics"]["auc"]
    print(f"AUC on later admissions: {auc['value']:.3f} (standard error {auc['se']:.3f}).", end=" ")
    print(evaluated["privacy_sentence"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "paper_table"), *map(int, sys.argv[2:3]))
