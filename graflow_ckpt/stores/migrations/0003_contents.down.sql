-- Takes with it what checkpoints have in common: those that hold some do not load any more.

drop trigger over on graflow_ckpt.staging;
drop trigger deleted on graflow_ckpt.checkpoints;
drop trigger replaced on graflow_ckpt.checkpoints;
drop function graflow_ckpt.clear_contents, graflow_ckpt.hold_contents, graflow_ckpt.add_content,
    graflow_ckpt.finish_content, graflow_ckpt.begin_content, graflow_ckpt.pin, graflow_ckpt.saving,
    graflow_ckpt.save_went, graflow_ckpt.checkpoint_went, graflow_ckpt.let_go;
delete from graflow_ckpt.chunks where put like 'content/%';
drop table graflow_ckpt.freed;
drop table graflow_ckpt.holds;
drop table graflow_ckpt.contents;
