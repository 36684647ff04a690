"""The commands `minitrain models` and `minitrain models show`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from minitrain.cli.options import AsJson, Debug
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.trace.model_tables import model_table, models_table
from minitrain.workloads.models import find_model, models
from minitrain.workloads.summary import summary

app = typer.Typer(help="List and show the models that can be trained.")

Name = Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, or a Hugging Face config.json.")]


@app.callback(invoke_without_command=True)
def list_models(context: typer.Context, as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001  (`failures` reads it)
    """List the shipped models."""
    if context.invoked_subcommand is not None:
        return
    if as_json:
        print_json([summary(model) for model in models().values()])
    else:
        print_table(models_table(models().values()))


@app.command()
def show(model: Name, as_json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001
    """Show what a model is made of: parameters, FLOPs and memory, and where its figures come from."""
    found = find_model(model)
    facts: dict[str, Any] = summary(found)
    if as_json:
        print_json(facts)
        return
    print_lines([found.name])
    print_table(model_table(found))
