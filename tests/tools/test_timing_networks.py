"""Networks against published times: which rows count, and the constants fitted again without a network."""

import numpy as np

from timing_networks import SOC, middle, points
from timing_networks_fit import LinearFit, fitted_constants

HEADER = "id,model,family,section,input_shape,batch,soc,soc_label,value,unit,precision,aoe,suspect\n"


def test_only_plain_fp16_rows_count_and_repeated_times_count_once(tmp_path):
    (tmp_path / "measured").mkdir()
    rows = [
        "a,AlexNet,alexnet,ACL,Bx3x224x224,4,310P3,310P3,4000,fps,fp16_default,0,0",
        "b,AlexNet,alexnet,again,Bx3x224x224,4,310P3,310P3,4000,fps,fp16_default,0,0",
        "c,AlexNet,alexnet,ACL,Bx3x224x224,8,310P3,310P3,7000,fps,int8,0,0",
        "d,AlexNet,alexnet,ACL,Bx3x224x224,8,310P3,310P3,7000,fps,fp16_default,1,0",
        "e,AlexNet,alexnet,ACL,Bx3x224x224,8,310P3,310P3,7000,fps,fp16_default,0,2",
        "f,AlexNet,alexnet,ACL,Bx3x224x224,8,310,310,7000,fps,fp16_default,0,0",
        "g,Nobody,other,ACL,Bx3x224x224,8,310P3,310P3,7000,fps,fp16_default,0,0",
    ]
    (tmp_path / "measured" / "model_infer.csv").write_text(HEADER + "\n".join(rows) + "\n")
    (point,) = points(tmp_path)
    assert (point.id, point.family, point.network, point.batch, point.measured_us) == (
        "a",
        "alexnet",
        "alexnet",
        4,
        1000.0,
    )


def test_larger_pictures_than_the_network_takes_are_cut_by_aipp(tmp_path):
    (tmp_path / "measured").mkdir()
    shapes = ["Bx3x256x256", "BS_SIZEx3x224x224", "Bx3x128x128", "Bx3x256x224", "Bx512;Bx512", ""]
    rows = [
        f"{at},AlexNet,alexnet,,{shape},4,310P3,310P3,{4000 + at},fps,fp16_default,0,0"
        for at, shape in enumerate(shapes)
    ]
    (tmp_path / "measured" / "model_infer.csv").write_text(HEADER + "\n".join(rows) + "\n")
    assert [point.case[2] for point in points(tmp_path)] == [256, 0, 0, 0, 0, 0]
    attrs = middle(256, 224).attrs((1, 3, 224, 224))
    assert attrs["load_start_pos"] == (16, 16) and attrs["crop_size"] == (224, 224)
    assert np.allclose(attrs["min_chn"][:3], [123.675, 116.28, 103.53], atol=0.05)


def test_a_fit_finds_the_constant_behind_the_times():
    keys = list(fitted_constants(SOC))
    assert "launch.task_us" in keys and len(keys) < 10
    shares = np.random.default_rng(0).uniform(0, 1, (12, len(keys)))

    def predict(target):
        return np.exp(shares @ np.log([target.value(key) for key in keys])) * 100

    moved = np.linspace(0.1, -0.1, len(keys))
    measured = np.exp(shares @ (np.log(list(fitted_constants(SOC).values())) + moved)) * 100
    fit = LinearFit(SOC, predict, measured, ["a"] * 6 + ["b"] * 6)
    assert np.allclose(fit.fit(np.arange(12)), moved, atol=0.02)
    assert all(np.median(errors) < 0.02 for errors in fit.left_out().values())
    assert "network left out" in fit.report()
