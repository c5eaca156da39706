"""A model that is set into the channel once and then trained in place, with a checkpoint every ten epochs.

The task is decorated outside of the `with` block and found by its name. In epoch 34 the machine
runs out of memory; the training goes on from epoch 30 and ends as if nothing had happened.
"""

import random

from graflow_ckpt import CheckpointManager, WorkflowEngine, task, workflow

machine = {"memory": "short"}


class Model:
    """One weight per feature, learned by the perceptron rule."""

    def __init__(self, features):
        self.weights = [0.0] * features
        self.saved = False

    def guess(self, point):
        return sum(w * x for w, x in zip(self.weights, point, strict=True)) > 0


def make_points(count, draw):
    truth = [3.0, -2.0, 0.5, 1.5]
    points = [[draw.uniform(-1, 1) for _ in truth] for _ in range(count)]
    return [(p, sum(t * x for t, x in zip(truth, p, strict=True)) > 0) for p in points]


POINTS = make_points(200, random.Random(4))


def train_epoch(model, epoch):
    for point, side in random.sample(POINTS, 20):  # the order is drawn: random state is part of the session
        if model.guess(point) != side:
            step = 0.02 if side else -0.02
            model.weights = [w + step * x for w, x in zip(model.weights, point, strict=True)]
    if epoch == 33 and machine["memory"] == "short":
        raise MemoryError("the model does not fit any more")
    right = sum(model.guess(point) == side for point, side in POINTS)
    return {"loss": 1 - right / len(POINTS), "accuracy": right / len(POINTS)}


@task(inject_context=True)
def ml_training(context):
    channel = context.get_channel()
    epoch = channel.get("epoch", default=0)
    model = channel.get("model")

    if epoch == 0:
        model = Model(features=4)
        channel.set("model", model)  # never set again: what is changed in place counts as set

    metrics = train_epoch(model, epoch)
    channel.set("epoch", epoch + 1)
    channel.set("metrics", metrics)

    if (epoch + 1) % 10 == 0:
        checkpoint_path, _ = context.checkpoint(
            metadata={"epoch": epoch + 1, "loss": metrics["loss"], "accuracy": metrics["accuracy"]}
        )
        print(f"Checkpoint asked for: {checkpoint_path}")

    if metrics["accuracy"] >= 0.985 and epoch >= 40:
        model.saved = True
        return "TRAINING_COMPLETE"
    context.next_iteration()
    return None


random.seed(12)
with workflow("ml_training") as ctx:
    try:
        ctx.execute("ml_training", max_steps=100)
    except MemoryError as error:
        print(f"Interrupted in epoch 34: {error}")

machine["memory"] = "enough"
context, metadata = CheckpointManager.resume_from_checkpoint(
    checkpoint_path=CheckpointManager.get_latest(ctx.session_id)
)
print(f"Resuming from epoch {metadata.user_metadata.get('epoch')}")
result = WorkflowEngine().execute(context)
channel = context.get_channel()
print(result, channel.get("epoch"), channel.get("metrics"), channel.get("model").weights)
assert result == "TRAINING_COMPLETE"
assert channel.get("model").saved
