"""The loss of a detector, and the boxes that it predicts, from its outputs.

Outputs are float32 (batch, locations, 7 + classes): for each location of each map, the
box that it predicts (left, top, right, bottom) and its own center (x, y) and stride,
all in pixels of the decoded image; then a logit for each class.
"""

import tensorflow as tf

BEFORE_LOGITS = 7
"""Numbers of a location before the logits."""
_REACH = 8.0  # times its stride: the longest side of the boxes that a map predicts
_RADIUS = 1.5  # strides around the center of a box, in which locations predict it
_FOCUS = 2.0  # exponent of the focal loss
_BOX_WEIGHT = 2.0  # of the loss of boxes, relative to the loss of classes


def detection_loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Focal loss of the classes and GIoU loss of the boxes, float32 (batch,).

    As in FCOS (Tian et al., "FCOS: Fully Convolutional One-Stage Object Detection",
    ICCV 2019), the locations near the center of a box predict it, on the map that suits
    its size. The logit of its class is trained to be the overlap of both boxes, so that
    the score tells how good the box is (Li et al., "Generalized Focal Loss", NeurIPS
    2020), all other logits to be 0. Boxes are trained with the generalized intersection
    over union (Rezatofighi et al., CVPR 2019). Both parts are sums, divided by the
    number of locations of this example that predict a box.

    Args:
        y: True boxes, float32 (batch, boxes, 6): left, top, right, bottom, class, or -1
            for padding, and 1 for boxes that do not count, else 0.
        outputs: Of the network.
    """
    outputs = tf.cast(outputs, tf.float32)
    predicted = outputs[..., :4]
    logits = outputs[..., BEFORE_LOGITS:]
    index, has_box, is_ignored = _assign(y, outputs[..., 4:BEFORE_LOGITS])
    truth = tf.gather(y, index, batch_dims=1)
    weight = tf.cast(has_box, tf.float32)
    iou, giou = _overlap(predicted, truth[..., :4])
    labels = tf.cast(truth[..., 4], tf.int32)
    quality = tf.stop_gradient(iou) * weight
    wanted = tf.one_hot(labels, logits.shape[-1]) * quality[..., None]
    losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
    losses *= tf.abs(wanted - tf.sigmoid(logits)) ** _FOCUS
    counts = 1.0 - tf.cast(is_ignored, tf.float32)
    classes = tf.reduce_sum(losses * counts[..., None], axis=(1, 2))
    boxes = tf.reduce_sum((1.0 - giou) * weight, axis=1)
    total = tf.maximum(tf.reduce_sum(weight, axis=1), 1.0)
    return (classes + _BOX_WEIGHT * boxes) / total


def _assign(
    y: tf.Tensor, locations: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The box that each location predicts: its index, int32 (batch, locations), and
    whether it has one; and whether it is inside a box that does not count.

    A location that could predict several boxes predicts the smallest.
    """
    center = locations[:, :, None, :2]
    stride = locations[:, :, None, 2]
    boxes = y[:, None]
    first, last = boxes[..., :2], boxes[..., 2:4]
    is_padding = boxes[..., 4] < 0
    is_ignored = boxes[..., 5] > 0
    side = tf.reduce_max(last - first, axis=-1)
    finest = tf.reduce_min(stride, axis=1, keepdims=True)
    coarsest = tf.reduce_max(stride, axis=1, keepdims=True)
    is_on_map = (side <= _REACH * stride) | (stride >= coarsest)
    is_on_map &= (side > _REACH / 2 * stride) | (stride <= finest)
    distance = tf.reduce_max(tf.abs(center - (first + last) / 2), axis=-1) / stride
    is_inside = tf.reduce_all((center > first) & (center < last), axis=-1)
    # The location next to the center of a small box may be outside of it.
    is_near = (is_inside & (distance <= _RADIUS)) | (distance <= 0.5)
    may_predict = is_on_map & is_near & ~is_padding & ~is_ignored
    area = tf.where(may_predict, tf.reduce_prod(last - first, axis=-1), tf.float32.max)
    index = tf.argmin(area, axis=-1, output_type=tf.int32)
    has_box = tf.reduce_any(may_predict, axis=-1)
    in_ignored = tf.reduce_any(is_inside & is_ignored & ~is_padding, axis=-1)
    return index, has_box, in_ignored & ~has_box


def _overlap(first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Intersection over union of boxes (..., 4), and its generalization, float32."""
    common = _area(
        tf.maximum(first[..., :2], second[..., :2]),
        tf.minimum(first[..., 2:], second[..., 2:]),
    )
    around = _area(
        tf.minimum(first[..., :2], second[..., :2]),
        tf.maximum(first[..., 2:], second[..., 2:]),
    )
    union = _area(first[..., :2], first[..., 2:])
    union += _area(second[..., :2], second[..., 2:]) - common
    iou = common / tf.maximum(union, 1e-6)
    return iou, iou - (around - union) / tf.maximum(around, 1e-6)


def _area(first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """The area of boxes from their first and last corners (..., 2)."""
    return tf.reduce_prod(tf.maximum(last - first, 0.0), axis=-1)


def best_boxes(
    outputs: tf.Tensor, max_boxes: int, iou_threshold: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The boxes with the highest scores that do not repeat others of their class.

    A box that overlaps a kept one of its class and a higher score by more than
    `iou_threshold` is left out. Uses only operations that TensorFlow Serving has.

    Returns:
        Boxes in pixels of the decoded image, float32 (batch, max_boxes, 4); their
        scores, float32 (batch, max_boxes), the highest first and 0 after the last; and
        their classes, int32 (batch, max_boxes).
    """
    outputs = tf.cast(outputs, tf.float32)
    scores = tf.sigmoid(outputs[..., BEFORE_LOGITS:])
    classes = tf.argmax(scores, axis=-1, output_type=tf.int32)
    best = tf.reduce_max(scores, axis=-1)
    # Most locations repeat the box of a neighbor.
    candidates = min(best.shape[1], 4 * max_boxes)
    best, index = tf.math.top_k(best, candidates)
    classes = tf.gather(classes, index, batch_dims=1)
    boxes = tf.gather(outputs[..., :4], index, batch_dims=1)
    iou, _ = _overlap(boxes[:, :, None], boxes[:, None])
    order = tf.range(candidates)
    is_repeated = (iou > iou_threshold) & (classes[:, :, None] == classes[:, None])
    # [batch, kept, left out]
    is_repeated &= order[:, None] < order[None]
    best = tf.where(_keep(is_repeated), best, 0.0)
    missing = max(max_boxes - candidates, 0)
    best = tf.pad(best, [[0, 0], [0, missing]])
    best, index = tf.math.top_k(best, max_boxes)
    index = tf.minimum(index, candidates - 1)
    boxes = tf.gather(boxes, index, batch_dims=1)
    return boxes, best, tf.gather(classes, index, batch_dims=1)


def _keep(is_repeated: tf.Tensor) -> tf.Tensor:
    """Which of the boxes greedy suppression keeps, bool (batch, boxes).

    Starts with all boxes, and repeats: keep the boxes that no kept box suppresses. The
    first n boxes are final after n rounds, and usually all are after a few.
    """
    suppresses = tf.cast(is_repeated, tf.float32)

    def round(kept: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        weights = tf.cast(kept, tf.float32)[:, None]
        suppressed = tf.matmul(weights, suppresses)[:, 0] > 0
        return ~suppressed, tf.reduce_any(~suppressed != kept)

    start = tf.ones_like(is_repeated[:, 0])
    kept, _ = tf.while_loop(
        lambda _, has_changed: has_changed, round, (start, tf.constant(True))
    )
    return kept
