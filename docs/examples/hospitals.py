"""Draws the tables of the tutorials: `python docs/examples/hospitals.py` writes docs/examples/hospitals.

No real patient's records: every value is drawn by `random` alone, whose numbers are the same in all versions of Python.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

COLUMNS = "age,sex,admission,stays,pressure,temperature,sodium,potassium,glucose,creatinine,readmitted"
PATIENTS = {"north": 400, "east": 260, "south": 200, "west": 120}


def patient(hospital: str, draw: random.Random) -> str:
    """A line of a hospital's table. The hospitals differ in ages, in units, in what they measure and in one effect."""
    old, pressure, temperature, sodium, potassium, glucose, creatinine = (draw.gauss(0, 1) for _ in range(7))
    old += hospital == "south"
    sex = draw.choice(("female", "male"))
    admission = draw.choices(("planned", "emergency", "transfer"), (5, 4, 1))[0]
    stays = min(int(draw.expovariate(0.6)), 9)
    # too low is as bad as too high, which a linear model cannot express
    risk = 1.2 * (abs(pressure) + abs(temperature) + abs(sodium) + abs(potassium) - 3.2)
    risk += 0.5 * old + 0.8 * (admission == "emergency") + 0.7 * creatinine + 0.6 * glucose
    # south looks after patients with many earlier stays at home
    risk += 1.5 - stays if hospital == "south" else 0.5 * stays - 0.8
    readmitted = draw.random() < 1 / (1 + math.exp(-4 * (risk - 1.6)))
    mg_dl = 115 + 28 * glucose
    fields = [
        f"{64 + 9 * old:.0f}",
        sex,
        admission,
        f"{stays}",
        "" if draw.random() < 0.1 else f"{130 + 15 * pressure:.0f}",
        f"{37 + 0.5 * temperature:.1f}",
        f"{140 + 4 * sodium:.0f}",
        f"{4.2 + 0.5 * potassium:.1f}",
        f"{mg_dl / 18:.1f}" if hospital == "west" else f"{mg_dl:.0f}",
        "0" if hospital == "east" else "" if draw.random() < 0.05 else f"{math.exp(0.3 * creatinine):.2f}",
        "yes" if readmitted else "no",
    ]
    return ",".join(fields)


def table(hospital: str) -> str:
    """The text of a hospital's file."""
    draw = random.Random(f"hospital {hospital}")
    return "\n".join([COLUMNS, *(patient(hospital, draw) for _ in range(PATIENTS[hospital])), ""])


if __name__ == "__main__":
    for name in PATIENTS:
        (Path(__file__).with_suffix("") / f"{name}.csv").write_text(table(name), encoding="utf-8", newline="\n")
