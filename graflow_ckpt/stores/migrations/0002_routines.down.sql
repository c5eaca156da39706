-- Tables and what is in them stay.

drop function graflow_ckpt.append, graflow_ckpt.begin_segment, graflow_ckpt.remove, graflow_ckpt.sweep,
    graflow_ckpt.withdraw, graflow_ckpt.put, graflow_ckpt.stage, graflow_ckpt.line, graflow_ckpt.release,
    graflow_ckpt.hold, graflow_ckpt.claim, graflow_ckpt.fence, graflow_ckpt.durable;
