"""npusim: an Ascend NPU in software. It runs what metadef compiles: real numbers, cycles and bytes."""
