-- Takes all checkpoints, journals and leases with it.

drop table graflow_ckpt.frames;
drop table graflow_ckpt.segments;
drop table graflow_ckpt.staging;
drop table graflow_ckpt.chunks;
drop table graflow_ckpt.checkpoints;
drop sequence graflow_ckpt.commits;
drop table graflow_ckpt.lines;
drop table graflow_ckpt.sessions;
