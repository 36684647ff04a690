"""The command `minitrain solve`."""

import json

import pytest
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app


def solve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("solve", *arguments))


def test_one_case_is_explained() -> None:
    said = solve("Llama2-70B", "H100")
    assert said.exit_code == 0
    assert said.stdout == f"{mt.solve('Llama2-70B', 'H100').explain()}\n"


def test_many_cases_are_a_table_or_json() -> None:
    asked = (
        "ResNet50,llama3-8b",
        "A100",
        "--batch-size",
        "1,8",
        "--precision",
        "fp16,bf16",
        "--devices",
        "1,2",
        "--json",
    )
    rows = json.loads(solve(*asked).stdout)
    assert len(rows) == 16
    assert rows[0]["latency_ms"] == 0.041282051282051285
    assert {(row["batch_size"], row["precision"], row["num_devices"]) for row in rows} == {
        (size, precision, num) for size in (1, 8) for precision in ("fp16", "bf16") for num in (1, 2)
    }
    shown = solve(*asked[:-1])
    assert "note: A100 states no peak rate for bf16; that for fp16 is used" in shown.stderr
    assert "llama3-8b" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("BERT", "A1000"), "there is no system 'A1000'"),
        (("BERT,", "A100"), "MODEL must name something between commas, got 'BERT,'"),
        (("BERT", "A100", "--batch-size", "1,x"), "--batch-size must be whole numbers >= 1 with commas between them"),
        (("BERT", "A100", "--devices", "0"), "num_devices must be a whole number >= 1, got 0"),
        (("BERT", "A100", "--precision", "half"), "precision must be a datatype such as"),
    ],
)
def test_mistakes_are_said_in_a_line(arguments: tuple[str, ...], message: str) -> None:
    said = solve(*arguments)
    assert said.exit_code == 2
    assert message in said.stderr.replace("\n", " ")
