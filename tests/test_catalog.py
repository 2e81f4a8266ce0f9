"""Every row of the catalogue is what its publisher says, and names lead to it."""

import subprocess
import sys
from pathlib import Path

import pytest
import timm
from timm.models import get_pretrained_cfg

from vitft.errors import WeightsError
from vitft.model import config_of
from vitft.pretrained import catalog, check_weights_name
from vitft.pretrained.catalog import Entry
from vitft.pretrained.locate import bundled

PUBLISHED = [entry for entry in catalog.entries() if entry.repo]
TIMMS = [entry for entry in PUBLISHED if entry.repo.startswith("timm/")]


def test_no_plain_vit_that_timm_publishes_in_these_families_is_missing() -> None:
    families = {entry.name.partition(".")[2] for entry in TIMMS}

    published = {
        name
        for name in timm.list_pretrained("vit_*_patch*_*")
        if name.partition(".")[2] in families and name.count("_", 0, name.index(".")) == 3
    }

    assert {entry.name for entry in TIMMS} == published


@pytest.mark.parametrize("entry", TIMMS, ids=lambda entry: entry.name)
def test_a_row_agrees_with_timms_configuration(entry: Entry) -> None:
    theirs = get_pretrained_cfg(entry.name)

    assert theirs is not None
    assert entry.repo == theirs.hf_hub_id
    assert entry.image_size == theirs.input_size[1:]
    assert (entry.mean, entry.std) == (theirs.mean, theirs.std)
    assert (entry.crop, entry.interpolation) == (theirs.crop_pct, theirs.interpolation)
    assert (entry.num_classes, entry.licence) == (theirs.num_classes, theirs.license)


@pytest.mark.parametrize("entry", TIMMS, ids=lambda entry: entry.name)
def test_a_short_name_means_what_timm_means_by_it(entry: Entry) -> None:
    default = get_pretrained_cfg(entry.architecture)

    is_default = default is not None and default.tag == entry.name.partition(".")[2]
    assert (entry.architecture in entry.aliases) == is_default


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_a_row_names_an_architecture_that_can_be_built(entry: Entry) -> None:
    assert config_of(entry.architecture).image_size == entry.image_size
    assert entry.licence
    assert entry.file == "model.safetensors"


def test_the_headline_name_is_the_original_checkpoint_and_says_so() -> None:
    entry = catalog.find("vit_base_patch16_224_in21k")

    assert entry.repo == "google/vit-base-patch16-224-in21k"
    assert entry.pre_logits
    assert "ORIGINAL" in entry.note
    assert "vit_base_patch16_224.augreg_in21k" in entry.note
    assert any("ORIGINAL" in line for line in entry.lines())


def test_an_unknown_name_names_the_five_nearest() -> None:
    with pytest.raises(WeightsError) as caught:
        check_weights_name("vit_base_patch16_224_in22k")

    assert "vit_base_patch16_224_in21k" in caught.value.fix
    assert caught.value.fix.count("vit_") == 5


def test_names_are_checked_without_torch_and_without_the_hub_client() -> None:
    code = (
        "import sys; from vitft.pretrained import check_weights_name as check;"
        "check('vit_base_patch16_224_in21k'); print({'torch', 'huggingface_hub'} & {*sys.modules})"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


def test_weights_that_travel_with_vitft_are_missed_only_when_asked_for() -> None:
    absent = Entry(name="gone", licence="apache-2.0", path="gone.safetensors")

    with pytest.raises(WeightsError, match=r"missing from this installation.*gone\.safetensors"):
        bundled(absent)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("missing.safetensors", "weights not found", id="missing file"),
        pytest.param("./vit_base", "weights not found", id="missing path"),
        pytest.param("model.onnx", "weights not found", id="missing file of another kind"),
        pytest.param("notes.txt", "suffix '.txt'", id="wrong suffix"),
        pytest.param("bare", "suffix 'none'", id="no suffix"),
        pytest.param("empty", "without a model.safetensors", id="folder"),
        pytest.param("model.pth", "is a Python pickle", id="pickle"),
        pytest.param("  ", "is empty", id="no name"),
    ],
)
def test_a_wrong_path_is_refused_early(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for present in ("notes.txt", "bare", "model.pth"):
        Path(present).write_bytes(b"")

    with pytest.raises(WeightsError, match=message):
        check_weights_name(name, allow_pickle=False)


def test_a_folder_with_weights_in_it_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()

    check_weights_name(tmp_path)
    check_weights_name(str(tmp_path))
