-- Tables of the store, in a schema of their own.

create table graflow_ckpt.sessions (
    session text collate "C" primary key,
    epoch bigint not null,              -- of the last owner; it only grows
    owner text,                         -- as JSON; null: nobody
    until timestamptz,                  -- by this server's clock
    term bigint not null default 0,     -- milliseconds between a renewal and `until`
    claim text                          -- which claim has made the owner, so that it may be asked for again
) with (fillfactor = 70);               -- renewals change no index: let them stay on their page

create table graflow_ckpt.lines (
    number bigint generated always as identity,
    session text collate "C" not null,
    epoch bigint not null,
    sequence bigint not null,
    primary key (session, epoch, sequence)
);

create sequence graflow_ckpt.commits;

create table graflow_ckpt.checkpoints (
    name text collate "C" primary key,
    commit_number bigint not null,      -- the last committed has the highest
    put text not null,                  -- which write this is, so that it may be asked for again
    session text collate "C",           -- these three are the meta's, to list by; nobody believes them
    workflow text collate "C",
    status text collate "C",
    parts jsonb not null,               -- part -> {put, stage, size, count}
    meta bytea not null,
    pkl bytea,                          -- of each other part its last chunk, which is mostly all of it
    state bytea
);
alter table graflow_ckpt.checkpoints
    alter column pkl set storage external, alter column state set storage external;  -- as with chunks

create index checkpoints_newest on graflow_ckpt.checkpoints (commit_number);
create index checkpoints_of_session on graflow_ckpt.checkpoints (session, commit_number);
create index checkpoints_of_workflow on graflow_ckpt.checkpoints (workflow, commit_number);
create index checkpoints_of_status on graflow_ckpt.checkpoints (status, commit_number);

create table graflow_ckpt.chunks (       -- those before the last one of a part
    put text collate "C" not null,
    part text collate "C" not null,
    number integer not null,
    data bytea not null,
    primary key (put, part, number)
);
alter table graflow_ckpt.chunks alter column data set storage external;  -- compressing arrays costs and saves nothing

create table graflow_ckpt.staging (
    put text collate "C" primary key,   -- who is writing chunks that no checkpoint has yet
    session text collate "C" not null,
    epoch bigint not null,
    begun timestamptz not null default clock_timestamp()
);

create table graflow_ckpt.segments (
    session text collate "C" not null,
    epoch bigint not null,
    after bigint not null,
    primary key (session, epoch, after)
);

create table graflow_ckpt.frames (
    session text collate "C" not null,
    epoch bigint not null,
    after bigint not null,
    number bigint not null,
    data bytea not null,
    primary key (session, epoch, after, number),
    foreign key (session, epoch, after) references graflow_ckpt.segments on delete cascade
);
alter table graflow_ckpt.frames alter column data set storage external;
