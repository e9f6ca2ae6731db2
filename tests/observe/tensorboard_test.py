"""Opens a file of ours with TensorBoard itself: tensorboard_test.py WRITE_EVENTS.

Fails where TensorBoard cannot be imported: run scripts/setup.
"""

import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.histogram import metadata as histogram_plugin
from tensorboard.plugins.scalar import metadata as scalar_plugin
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.util import tensor_util


def check_classic(folder):
    """As the older reader sees it: the messages as they are in the file."""
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"], events.Tags()
    scalars = events.Scalars("train/loss")
    assert [point.step for point in scalars] == list(range(21))
    for point in scalars[:20]:
        assert point.value == np.float32(1 / (point.step + 1)), point
    assert math.isnan(scalars[20].value)

    assert sorted(events.Tags()["histograms"]) == ["empty", "weights"]
    (entry,) = events.Histograms("weights")
    histogram = entry.histogram_value
    weights = (np.arange(1000, dtype=np.float32) - np.float32(500)) / np.float32(250)
    assert entry.step == 5
    assert (histogram.min, histogram.max, histogram.num) == (weights.min(), weights.max(), 1000)
    assert math.isclose(histogram.sum, weights.astype(np.float64).sum(), rel_tol=1e-12)
    assert math.isclose(histogram.sum_squares, (weights.astype(np.float64) ** 2).sum())
    edges = [-np.inf, *histogram.bucket_limit]
    expected = [((weights >= low) & (weights < high)).sum() for low, high in zip(edges, edges[1:])]
    assert list(histogram.bucket) == expected


def check_plugins(folder):
    """As TensorBoard's pages see it: every value migrated to the tensor of a plugin."""
    (path,) = pathlib.Path(folder).iterdir()
    plugins = {}
    values = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name:
                plugins[value.tag] = value.metadata.plugin_data.plugin_name
            values[value.tag] = tensor_util.make_ndarray(value.tensor)
    assert plugins == {
        "train/loss": scalar_plugin.PLUGIN_NAME,
        "weights": histogram_plugin.PLUGIN_NAME,
        "empty": histogram_plugin.PLUGIN_NAME,
        "config": text_plugin.PLUGIN_NAME,
    }, plugins
    assert values["config"].item().decode() == "learning rate **0.1** & Größe"
    assert values["weights"][:, 2].sum() == 1000, values["weights"]
    assert (values["weights"][:, 0] <= values["weights"][:, 1]).all()


def check_continued(folder, files):
    """A run that was killed and went on: neither a gap nor anything twice."""
    assert len(list(pathlib.Path(folder).iterdir())) == files
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    scalars = events.Scalars("train/loss")
    assert [point.step for point in scalars] == list(range(1, 12)), scalars
    for point in scalars:
        assert point.value == point.step + (100 if point.step >= 6 else 0), point
    assert [entry.step for entry in events.Histograms("weights")] == list(range(1, 12))


def main():
    with tempfile.TemporaryDirectory() as base:
        folder, continued, elastic = (f"{base}/{name}" for name in ("folder", "continued", "elastic"))
        subprocess.run([sys.argv[1], folder, continued, elastic], check=True)
        check_classic(folder)
        check_plugins(folder)
        check_continued(continued, files=2)
        check_continued(elastic, files=1)
    print("tensorboard reads what we write")


main()
