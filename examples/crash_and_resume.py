import os

from graflow_ckpt import task, workflow


@task(inject_context=True)
def learn(context):
    rounds = context.get_channel().get("rounds", default=[])
    rounds.append(len(rounds) + 1)  # changed in place: counts as set
    print("round", rounds[-1], flush=True)
    if rounds[-1] == 7 and not os.path.exists("crashed"):
        os.mkdir("crashed")
        os.kill(os.getpid(), 9)  # SIGKILL
    if rounds[-1] % 2 == 0:
        context.checkpoint()  # taken when this round is committed
    if rounds[-1] < 10:
        context.next_iteration()
    return rounds


@task
def report(learn):
    print("learned in rounds", learn)


with workflow("crash-and-resume", session_id="lesson") as ctx:
    learn >> report
    ctx.execute()
