"""Where decoded examples are kept, decided from their size and the free memory, with the reason."""

import psutil
import tensorflow as tf

from pipeline import config
from pipeline.contracts import Decision, Example, Source, Task
from pipeline.errors import UsageError
from pipeline.stores import computing_devices

# Of the memory of a GPU; the network, its gradients and activations need the rest.
_SHARE_OF_DEVICE = 0.4


def decided(source: Source, task: Task, options: config.Data) -> Decision:
    """`device`, `memory` or `none`, and why.

    Raises UsageError for what was asked for and cannot be, and if nothing can.
    """
    size = decoded_size(source, task, options)
    free = psutil.virtual_memory().available
    sizes = f"{size / 1e6:,.1f} MB decoded, {free / 1e9:.0f} GB free"
    in_order = next((s for s in source.info.splits if source.reader(s) is None), None)
    if options.cache == "none":
        if in_order:
            raise UsageError(
                "--data.cache none: this source can only be read from the beginning to the end; "
                "choose memory"
            )
        return Decision("cache", "none", "asked for; each example is decoded in each epoch")
    # Twice: TensorFlow copies each column once it is full.
    limit = free if options.cache == "auto" else psutil.virtual_memory().total
    if 2 * size > limit:
        if options.cache == "auto" and not in_order:
            return Decision("cache", "none", f"{sizes}; each example is decoded in each epoch")
        raise UsageError(
            f"the decoded data need {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "choose a smaller --data.limit, or a smaller --data.image-size for images"
        )
    if options.cache != "auto":
        return Decision("cache", options.cache, "asked for")
    room = _device_memory()
    if room and size <= _SHARE_OF_DEVICE * room:
        return Decision("cache", "device", f"{sizes} in all, {room / 1e9:.0f} GB on each GPU")
    return Decision("cache", "memory", sizes)


def decoded(source: Source, task: Task) -> dict[str, tf.TensorSpec]:
    """Shape and dtype of each field of a decoded example."""

    def example() -> Example:
        fields = source.info.fields.items()
        return {n: tf.zeros([1 if d is None else d for d in f.shape], f.dtype) for n, f in fields}

    return tf.data.Dataset.from_tensors(example()).map(task.decode).element_spec


def decoded_size(source: Source, task: Task, options: config.Data) -> int:
    """Bytes of all decoded examples of all splits."""
    each = sum(s.dtype.size * s.shape.num_elements() for s in decoded(source, task).values())
    return each * sum(min(n, options.limit or n) for n in source.info.splits.values())


def _device_memory() -> int:
    """Bytes that TensorFlow may use on the smallest GPU; 0 without one."""
    if not any("GPU" in name for name in computing_devices()):
        return 0
    from tensorflow.python.client import device_lib

    return min(d.memory_limit for d in device_lib.list_local_devices() if d.device_type == "GPU")
