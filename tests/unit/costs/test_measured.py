from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from libra_core.costs.measured import (
    PROFILE_VERSION,
    DecodeCell,
    MeasuredProfile,
    PrefillCell,
    fit_engine,
    read_measured,
    write_measured,
)
from libra_core.errors import ConfigError
from support.laws import trainer_law

SOFTWARE = {"vllm": "0.32.0", "torch": "2.13.0"}
DECODE = [
    DecodeCell(batch=batch, context_tokens=batch * context, step_s=4e-3 + 1e-4 * batch + 2e-7 * batch * context)
    for batch in (1, 8, 64)
    for context in (64, 512, 1536)
]
PREFILL = [PrefillCell(prompt_tokens=n, seconds=3e-3 + 3e-5 * n + 3e-8 * n * n / 2) for n in (32, 256, 1024, 1900)]

TRAINER = trainer_law(s_per_token2=6e-8, held_out_median_error=0.02, batch_error=-0.05, num_cells=9)


def profile() -> MeasuredProfile:
    return MeasuredProfile(
        version=PROFILE_VERSION,
        host="here",
        device="a processor, 2 cores",
        model="tiny",
        measured_on="2026-11-29",
        clock="cpu",
        software=SOFTWARE,
        engines=(fit_engine(1, 131_072, DECODE, PREFILL),),
        trainers=(TRAINER,),
        max_context_tokens=2048,
    )


def test_the_law_behind_the_cells_is_found() -> None:
    law = fit_engine(1, 131_072, DECODE, PREFILL)
    assert law.law.a_s == pytest.approx(4e-3)
    assert law.law.c_s == pytest.approx(2e-7)
    assert law.law.prefill_s(1024) == pytest.approx(PREFILL[2].seconds)
    assert law.held_out_median_error < 1e-9


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    write_measured(profile(), tmp_path / "host.yaml")
    assert read_measured(tmp_path / "host.yaml", software=SOFTWARE) == profile()


def test_a_profile_of_other_software_is_refused(tmp_path: Path) -> None:
    write_measured(profile(), tmp_path / "host.yaml")
    with pytest.raises(ConfigError, match=r"vllm 0\.32\.0 then, 0\.33\.0 now"):
        read_measured(tmp_path / "host.yaml", software={"vllm": "0.33.0"})


def test_a_profile_of_another_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    write_measured(profile(), file)
    file.write_text(file.read_text().replace(f"version: {PROFILE_VERSION}", "version: 1"))
    with pytest.raises(ConfigError, match="has version 1, this Libra reads 2; run `libra calibrate` again"):
        read_measured(file)


def test_a_damaged_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(f"version: {PROFILE_VERSION}\n")
    with pytest.raises(ConfigError, match="run `libra calibrate` again"):
        read_measured(tmp_path / "host.yaml")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("engines", "none"),
        ("engines", [None]),
        ("engines", [[]]),
        ("software", None),
        ("software", ["vllm"]),
        ("model", None),
        ("max_context_tokens", "many"),
    ],
)
def test_a_profile_with_a_part_of_another_form_is_refused(tmp_path: Path, part: str, value: object) -> None:
    file = tmp_path / "host.yaml"
    write_measured(profile(), file)
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {part: value}))
    with pytest.raises(ConfigError, match="run `libra calibrate` again"):
        read_measured(file, software=SOFTWARE)


def test_a_profile_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="run `libra calibrate` again"):
        read_measured(tmp_path / "host.yaml")


def test_only_measured_degrees_are_offered() -> None:
    laws = profile().engine_laws
    assert {tp: law.kv_tokens for tp, law in laws.of.items()} == {1: 131_072}
    with pytest.raises(ConfigError, match="engines of tp 2 have no law; known are those of tp 1"):
        laws[2]


def test_only_measured_layouts_are_forecast() -> None:
    measured = replace(profile(), trainers=(trainer_law(),))
    assert measured.trainer(1, 1) == trainer_law()
    with pytest.raises(ConfigError, match=r"tp 2 pp 1 was not measured; measured: tp 1 pp 1"):
        measured.trainer(2, 1)
