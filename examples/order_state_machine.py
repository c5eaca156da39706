"""An order that passes through its states, one `next_iteration` each, with a checkpoint after each.

The carrier is closed when the order is to be shipped for the first time. The session is then
resumed from the checkpoint that was taken after the payment, and the customer pays once.
"""

from graflow_ckpt import CheckpointManager, WorkflowEngine, task, workflow

ledger = []
carrier = {"open": False}


def validate_order(order):
    assert order["amount"] > 0, order


def process_payment(order):
    ledger.append(order["amount"])


def ship_order(order):
    if not carrier["open"]:
        raise ConnectionError("the carrier does not answer")


with workflow("order_processing") as ctx:

    @task(inject_context=True)
    def process_order(context):
        channel = context.get_channel()
        state = channel.get("order_state", default="NEW")
        order_data = channel.get("order_data")

        if state == "NEW":
            validate_order(order_data)
            channel.set("order_state", "VALIDATED")
            checkpoint_path, _ = context.checkpoint(
                metadata={"stage": "validation_complete", "order_id": order_data["id"]}
            )
            print(f"Checkpoint asked for: {checkpoint_path}")
            context.next_iteration()

        elif state == "VALIDATED":
            process_payment(order_data)
            channel.set("order_state", "PAID")
            checkpoint_path, _ = context.checkpoint(
                metadata={"stage": "payment_complete", "amount": order_data["amount"]}
            )
            print(f"Checkpoint asked for: {checkpoint_path}")
            context.next_iteration()

        elif state == "PAID":
            ship_order(order_data)
            return "ORDER_COMPLETE"

        return None

    channel = ctx.execution_context.get_channel()
    channel.set("order_data", {"id": "ORD123", "amount": 100})

    try:
        ctx.execute("process_order", max_steps=10)
    except ConnectionError as error:
        print(f"Error: {error}")

# Later, perhaps in another process: any of the session's checkpoints will do, here the one after the payment.
carrier["open"] = True
found = CheckpointManager.list_checkpoints(ctx.session_id)
paid = next(m for m in found if m.user_metadata.get("stage") == "payment_complete")
context, metadata = CheckpointManager.resume_from_checkpoint(checkpoint_path=paid.path)
print(f"Resuming from step {metadata.steps}, stage: {metadata.user_metadata.get('stage')}")

result = WorkflowEngine().execute(context)
print(result, ledger)
assert (result, ledger) == ("ORDER_COMPLETE", [100])
