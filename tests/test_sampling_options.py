"""Sampling parameters on the command line and in /params, and those that a model file recommends."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from localinfer.cli.chat_params import CHAT_PARAMS, described, parsed, split_setting
from localinfer.cli.options import _SAMPLING, with_sampling
from localinfer.engine.load import chat_defaults
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import FormatError, LocalInferError

SAMPLERS = ("dry_", "xtc_", "dynatemp_", "mirostat", "top_n_sigma")


def given(*arguments: str) -> dict[str, Any]:
    """What a command gets for these options."""
    found: dict[str, Any] = {}

    def command(sampling: dict[str, Any]) -> None:
        found.update(sampling)

    app = typer.Typer()
    app.command()(with_sampling(command))
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return found


def test_every_sampler_has_an_option_and_a_parameter_of_chats() -> None:
    names = {field.name for field in fields(SamplingParams) if field.name.startswith(SAMPLERS)}
    assert len(names) == 13
    assert names <= set(_SAMPLING)
    assert names <= set(CHAT_PARAMS)


def test_options_are_read() -> None:
    assert given() == {}
    assert given("--dry-multiplier", "0.8", "--dry-penalty-last-n", "-1", "--mirostat", "2", "--top-n-sigma", "1") == {
        "dry_multiplier": 0.8,
        "dry_penalty_last_n": -1,
        "mirostat": 2,
        "top_n_sigma": 1.0,
    }
    breakers = "--dry-sequence-breakers"
    assert given(breakers, "\n", breakers, "Anna:") == {"dry_sequence_breakers": ("\n", "Anna:")}
    assert given(breakers, "none") == {"dry_sequence_breakers": ()}
    assert given(breakers, "none", breakers, "x") == {"dry_sequence_breakers": ("none", "x")}
    with pytest.raises(LocalInferError, match="--dry-sequence-breakers is not valid UTF-8"):
        given(breakers, "\udcff")


def test_parameters_of_a_chat_are_read_and_shown() -> None:
    params = SamplingParams()
    for line in ("dry_multiplier 0.8", "--xtc-probability=0.5", "mirostat = 2", 'dry_sequence_breakers ":" "\\n"'):
        name, text = split_setting(line)
        params = params.changed(**{name: parsed(name, text)})
    assert params == SamplingParams(
        dry_multiplier=0.8, xtc_probability=0.5, mirostat=2, dry_sequence_breakers=(":", "\n")
    )
    assert parsed("dry_sequence_breakers", "none") == ()
    shown = described(params, SamplingParams())
    assert 'dry_sequence_breakers ":" "\\n"  (default "\\n" ":" "\\"" "*")' in shown
    assert "mirostat             2  (default 0)" in shown


def test_a_file_may_recommend_them() -> None:
    recommended = {"xtc_probability": 0.5, "xtc_threshold": 0.2, "mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2}
    found = chat_defaults({f"general.sampling.{name}": value for name, value in recommended.items()})
    assert found == SamplingParams(temperature=0.7, **recommended)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="mirostat is 7"):
        chat_defaults({"general.sampling.mirostat": 7})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dry_multiplier": -1}, "dry_multiplier is -1.0, but must be from 0"),
        ({"dry_base": 0.9}, "dry_base is 0.9, but must be from 1"),
        ({"dry_allowed_length": -1}, "dry_allowed_length is -1"),
        ({"dry_allowed_length": 1.5}, "dry_allowed_length is 1.5"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n is -2, but must be a whole number >= -1"),
        ({"dry_sequence_breakers": [1]}, "an item of dry_sequence_breakers is 1, but must be a text"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers is .* without empty"),
        ({"dry_sequence_breakers": ("x" * 41,)}, "at most 32 texts of at most 40 characters"),
        ({"dry_sequence_breakers": ("x",) * 33}, "at most 32 texts of at most 40 characters"),
        ({"top_n_sigma": -1}, "top_n_sigma is -1.0"),
        ({"dynatemp_range": -0.1}, "dynatemp_range is -0.1"),
        ({"dynatemp_exponent": "x"}, "dynatemp_exponent is 'x'"),
        ({"xtc_probability": 1.5}, "xtc_probability is 1.5, but must be from 0"),
        ({"xtc_threshold": float("nan")}, "xtc_threshold is nan"),
        ({"mirostat": 3}, "mirostat is 3, but must be 0"),
        ({"mirostat": True}, "mirostat is True"),
        ({"mirostat_tau": -1}, "mirostat_tau is -1.0"),
        ({"mirostat_eta": float("inf")}, "mirostat_eta is inf"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalInferError, match=words):
        SamplingParams().changed(**changes)


def test_one_breaker_may_be_given_alone() -> None:
    assert SamplingParams(dry_sequence_breakers="x").dry_sequence_breakers == ("x",)  # type: ignore[arg-type]
