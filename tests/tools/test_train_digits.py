"""The hand-written backward passes against finite differences, and the exported network against onnxruntime."""

import numpy as np
import pytest

import train_digits as td


@pytest.fixture
def net(rng):
    net = td.build_network(rng)
    for param in net.params():
        param.value = param.value + 0.05 * rng.standard_normal(param.value.shape).astype(np.float32)
    return net


def in_double(net):
    for param in net.params():
        param.value = param.value.astype(np.float64)


def test_gradients_match_finite_differences(net, rng):
    in_double(net)
    x, weights = rng.standard_normal((3, 28, 28, 1)), rng.standard_normal((3, 10))

    def loss():
        return float((net.forward(x, train=True) * weights).sum())

    loss()
    net.backward(weights)
    step = 1e-6
    for param in net.params():
        at = tuple(rng.integers(0, size) for size in param.value.shape)
        expected, kept = param.grad[at], param.value[at]
        param.value[at] = kept + step
        above = loss()
        param.value[at] = kept - step
        slope = (above - loss()) / (2 * step)
        param.value[at] = kept
        assert slope == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_calibration_joins_batches_into_whole_set_statistics(rng):
    norm, x = td.BatchNorm("bn", 3), rng.standard_normal((10, 4, 4, 3)) * 2 + 1
    norm.sums = []
    norm.forward(x[:6], train=True)
    norm.forward(x[6:], train=True)
    norm.calibrate()
    np.testing.assert_allclose(norm.mean, x.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(norm.var, x.var((0, 1, 2)), rtol=1e-6)


def test_exported_network_computes_the_same(net, rng, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pictures = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    td.calibrate(net, pictures, batch=5)
    td.export(net, tmp_path / "digits.onnx", 0.5)
    session = ort.InferenceSession(tmp_path / "digits.onnx", providers=["CPUExecutionProvider"])
    x = td.as_input(pictures)
    (outputs,) = session.run(None, {"image": x.transpose(0, 3, 1, 2)})
    np.testing.assert_allclose(outputs, td.softmax(net.forward(x, train=False)), rtol=1e-4, atol=1e-6)


def test_a_step_lowers_the_loss(net, rng):
    pictures, labels = rng.integers(0, 256, (20, 28, 28), dtype=np.uint8), rng.integers(0, 10, 20)
    target, losses = np.eye(10, dtype=np.float32)[labels], []
    for count in range(1, 9):
        share = td.softmax(net.forward(td.as_input(pictures), train=True))
        losses.append(-float(np.log(share[target > 0]).mean()))
        net.backward((share - target) / np.float32(20))
        for param in net.params():
            param.step(1e-3, count)
    assert losses[-1] < 0.8 * losses[0]
