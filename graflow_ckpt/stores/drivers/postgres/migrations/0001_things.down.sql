-- Takes all checkpoints with it.

drop function graflow_ckpt.batch, graflow_ckpt.find, graflow_ckpt.now, graflow_ckpt.durable;
drop table graflow_ckpt.things;
drop sequence graflow_ckpt.numbers;
