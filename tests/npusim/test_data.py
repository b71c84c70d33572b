"""The bundled model and its pictures."""

import numpy as np
import onnx
import pytest

from npusim.data import digits_model, digits_samples


def test_files_are_small():
    folder = digits_model().parent
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) < 1_000_000


def test_samples_hold_ten_of_each_digit():
    samples = digits_samples()
    assert samples.images.shape == (100, 28, 28) and samples.images.dtype == np.uint8
    assert samples.outputs.shape == (100, 10) and samples.outputs.dtype == np.float32
    assert np.array_equal(samples.labels, np.repeat(np.arange(10), 10))
    assert np.mean(samples.outputs.argmax(1) == samples.labels) >= 0.96


def test_inputs_are_grey_levels_from_zero_to_one():
    samples = digits_samples()
    one = samples.as_input(3, 1)
    assert one.shape == (1, 1, 28, 28) and one.dtype == np.float32
    assert one.min() == 0 and 0.9 < one.max() <= 1
    assert np.array_equal(samples.as_input()[3:4], one)


def test_model_keeps_batch_norms_and_layer_paths():
    model = onnx.load(digits_model())
    onnx.checker.check_model(model, full_check=True)
    types = [node.op_type for node in model.graph.node]
    assert types.count("Conv") == types.count("BatchNormalization") == 7
    assert types.count("Add") == 2
    assert "layer1/block0/conv1" in {node.name for node in model.graph.node}
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_param == "batch" and [d.dim_value for d in dims[1:]] == [1, 28, 28]


@pytest.mark.parametrize("count", [1, 100])
def test_stored_outputs_are_those_of_onnxruntime(count):
    ort = pytest.importorskip("onnxruntime")
    samples = digits_samples()
    session = ort.InferenceSession(digits_model(), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"image": samples.as_input(0, count)})
    # 14 layers of float32 sums in another order: far below 1e-4 on probabilities.
    np.testing.assert_allclose(outputs, samples.outputs[:count], atol=1e-4)
