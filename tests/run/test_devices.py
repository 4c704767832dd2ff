"""Choosing devices: names, defaults, targets, and the estimate that must be asked for."""

import pytest

from smalti.errors import SmaltiError
from smalti.run import device, devices
from smalti.run.devices import Device, runs

H200 = Device("cuda", "sm_90a", 132, "NVIDIA H200", 0)
B200 = Device("cuda", "sm_100a", 148, "NVIDIA B200", 1)


@pytest.fixture
def gpus(monkeypatch):
    def have(*found):
        monkeypatch.setattr(devices, "cuda_devices", lambda: found)
        monkeypatch.setattr(devices, "no_cuda_because", lambda: "" if found else "there is no CUDA driver")
        devices._SAID.clear()

    have()
    return have


def test_names(gpus):
    gpus(H200, B200)
    assert device("virtual:sm_100a") == Device("virtual", "sm_100a", 148, "virtual GPU sm_100a")
    assert device("virtual", arch="sm_103a").arch == "sm_103a"
    assert device("virtual", arch="sm_90").arch == "sm_90a"
    assert device("cuda") == H200 and device("cuda:1") == B200
    for d in (H200, B200, device("virtual:sm_90a")):
        assert device(d) is d and device(d.spec) == d


@pytest.mark.parametrize(
    "bad", ["gpu", "cuda:", "cuda:-1", "cuda:1x", "virtual:", "virtual:sm_90", "virtual:sm_120a", ""]
)
def test_other_names_are_refused(gpus, bad):
    gpus(H200)
    with pytest.raises(SmaltiError, match="SML0170"):
        device(bad)


def test_missing_cuda_says_why(gpus):
    with pytest.raises(SmaltiError, match=r"SML0171.*no CUDA driver"):
        device("cuda")
    gpus(H200)
    with pytest.raises(SmaltiError, match=r"SML0171.*1 CUDA device"):
        device("cuda:1")


def test_the_default_is_the_first_gpu_that_runs_the_code(gpus, capsys):
    gpus(H200, B200)
    assert device(arch="sm_100a") == B200 and device(arch="sm_90a") == H200 and device() == H200
    assert capsys.readouterr().err == ""


def test_the_virtual_gpu_by_default_is_said_once_with_an_estimate(gpus, capsys):
    gpus(H200)
    first = device(arch="sm_100a", work=5e9)
    assert first == device("virtual:sm_100a")
    said = capsys.readouterr().err
    assert said == "smalti: no CUDA device for sm_100a; running on the virtual GPU (virtual:sm_100a), about 20.0 s\n"
    device(arch="sm_100a", work=5e9)
    assert capsys.readouterr().err == ""


def test_a_minute_of_the_virtual_gpu_must_be_asked_for(gpus):
    limit = devices.VIRTUAL_RATE * 60
    assert device(arch="sm_90a", work=limit).kind == "virtual"
    with pytest.raises(SmaltiError, match=r"SML0173.*'virtual:sm_90a'"):
        device(arch="sm_90a", work=limit * 1.01)
    assert device("virtual", arch="sm_90a", work=limit * 100).kind == "virtual"


def test_code_for_another_architecture(gpus):
    gpus(H200)
    for spec in ("cuda", H200, "virtual:sm_90a"):
        with pytest.raises(SmaltiError, match="SML0172"):
            device(spec, arch="sm_100a")


@pytest.mark.parametrize(
    ("target", "arch", "good"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_100a", False),
        ("sm_90", "sm_90a", True),
        ("sm_80", "sm_100a", True),
        ("sm_100", "sm_90a", False),
        ("sm_100f", "sm_103a", True),
        ("sm_103f", "sm_100a", False),
        ("sm_100f", "sm_120a", False),
        ("sm_100a", "sm_103a", False),
    ],
)
def test_which_code_runs_where(target, arch, good):
    assert runs(target, arch) is good
