-- Contents: what several checkpoints have in common. A checkpoint holds some under 'c' and its put, a save that
-- is under way under 's' and the put of its row in `staging`. Holds go by triggers with what has them, in that
-- transaction, and leave a note in `freed`; who reads the notes takes away what nobody holds any more. The
-- foreign key keeps what somebody holds, whoever is faster.

create table graflow_ckpt.contents (
    id bigint generated always as identity primary key,
    name text collate "C" not null,
    size bigint not null,
    count integer not null,             -- of its chunks, which have 'content/ID' for their put
    good boolean not null               -- whole, and found by saves
);
create unique index contents_name on graflow_ckpt.contents (name) where good;

create table graflow_ckpt.holds (
    holder text collate "C" not null,
    content bigint not null references graflow_ckpt.contents,
    primary key (holder, content)
);
create index holds_content on graflow_ckpt.holds (content);

create table graflow_ckpt.freed (
    number bigint generated always as identity primary key,
    content bigint not null
);

create function graflow_ckpt.let_go(its_holder text) returns void language sql as $$
    with gone as (delete from graflow_ckpt.holds where holder = its_holder returning content)
    insert into graflow_ckpt.freed (content) select content from gone;
$$;

create function graflow_ckpt.checkpoint_went() returns trigger language plpgsql as $$
begin
    perform graflow_ckpt.let_go('c' || old.put);
    return null;
end $$;

create trigger replaced after update of put on graflow_ckpt.checkpoints
    for each row when (old.put <> new.put) execute function graflow_ckpt.checkpoint_went();
create trigger deleted after delete on graflow_ckpt.checkpoints
    for each row execute function graflow_ckpt.checkpoint_went();

create function graflow_ckpt.save_went() returns trigger language plpgsql as $$
begin
    perform graflow_ckpt.let_go('s' || old.put);
    return null;
end $$;

create trigger over after delete on graflow_ckpt.staging
    for each row execute function graflow_ckpt.save_went();

-- A save looks up, or adds. The first time (`fresh`) it makes its row; GC002: somebody has cleared it away.
create function graflow_ckpt.saving(its_session text, its_epoch bigint, its_save text, fresh boolean)
returns void language plpgsql as $$
begin
    if fresh then
        insert into graflow_ckpt.staging (put, session, epoch)
            values (its_save, coalesce(its_session, ''), coalesce(its_epoch, 0)) on conflict do nothing;
    else
        perform from graflow_ckpt.staging where put = its_save for share;
        if not found then
            raise exception using errcode = 'GC002', message = 'the save';
        end if;
    end if;
end $$;

-- Those that are there, in the order of their ids, so that two who do this do not wait for each other.
create function graflow_ckpt.pin(
    its_session text, its_epoch bigint, its_save text, fresh boolean, its_names text[]
) returns setof text language plpgsql as $$
declare
    one record;
begin
    perform graflow_ckpt.saving(its_session, its_epoch, its_save, fresh);
    for one in
        select id, name from graflow_ckpt.contents where good and name = any(its_names)
            and exists (select from graflow_ckpt.holds where content = id) order by id
    loop
        begin
            insert into graflow_ckpt.holds values ('s' || its_save, one.id) on conflict do nothing;
            return next one.name;
        exception when foreign_key_violation then
            null;  -- it went in this moment
        end;
    end loop;
end $$;

create function graflow_ckpt.begin_content(its_save text, its_name text, its_size bigint, its_count integer)
returns bigint language plpgsql as $$
declare
    made bigint;
begin
    perform graflow_ckpt.saving(null, null, its_save, false);
    insert into graflow_ckpt.contents (name, size, count, good)
        values (its_name, its_size, its_count, false) returning id into made;
    insert into graflow_ckpt.holds values ('s' || its_save, made);
    return made;
end $$;

-- The last chunk: from here on saves find it. If another one of that name was faster, that one is held.
create function graflow_ckpt.finish_content(its_save text, its_content bigint, its_number integer, its_data bytea)
returns void language plpgsql as $$
begin
    perform graflow_ckpt.saving(null, null, its_save, false);
    insert into graflow_ckpt.chunks values ('content/' || its_content, 'content', its_number, its_data)
        on conflict do nothing;
    loop
        begin
            update graflow_ckpt.contents set good = true where id = its_content;
            return;
        exception when unique_violation then
            null;
        end;
        begin
            insert into graflow_ckpt.holds
                select 's' || its_save, other.id from graflow_ckpt.contents as mine
                    join graflow_ckpt.contents as other on other.name = mine.name and other.good
                    where mine.id = its_content
                on conflict do nothing;
            if exists (select from graflow_ckpt.holds join graflow_ckpt.contents on id = content
                    where holder = 's' || its_save and good and name = (
                        select name from graflow_ckpt.contents where id = its_content)) then
                return;
            end if;
        exception when foreign_key_violation then
            null;  -- it went again
        end;
    end loop;
end $$;

create function graflow_ckpt.add_content(its_save text, its_name text, its_data bytea) returns void
language plpgsql as $$
begin
    perform graflow_ckpt.finish_content(its_save,
        graflow_ckpt.begin_content(its_save, its_name, length(its_data), 1), 0, its_data);
end $$;

-- In the transaction of a commit, before the row is set: it holds what its meta names. GC002: not all are there.
create function graflow_ckpt.hold_contents(its_put text, its_name text, its_names text[]) returns void
language plpgsql as $$
declare
    found_names bigint;
begin
    with former as (
        select holds.content from graflow_ckpt.checkpoints join graflow_ckpt.holds on holder = 'c' || put
            where checkpoints.name = its_name
    ), mine as (
        select distinct on (name) id, name from graflow_ckpt.contents
            where name = any(its_names) and (good or id in (select content from former))
            order by name, good desc
    ), held as (
        insert into graflow_ckpt.holds select 'c' || its_put, id from mine order by id on conflict do nothing
    )
    select count(*) into found_names from mine;
    if found_names < (select count(distinct one) from unnest(its_names) as one) then
        raise exception using errcode = 'GC002', message = 'contents';
    end if;
end $$;

-- Take away what nobody holds, of what was let go. Gives how many.
create function graflow_ckpt.clear_contents() returns bigint language plpgsql as $$
declare
    one bigint;
    gone bigint := 0;
begin
    for one in
        with first as (
            select number from graflow_ckpt.freed order by number limit 1000 for update skip locked
        ), notes as (
            delete from graflow_ckpt.freed using first where freed.number = first.number returning content
        )
        select distinct content from notes order by content
    loop
        perform from graflow_ckpt.contents where id = one for update;  -- who holds it now is waited for
        continue when not found or exists (select from graflow_ckpt.holds where content = one);
        delete from graflow_ckpt.chunks where put = 'content/' || one;
        delete from graflow_ckpt.contents where id = one;
        gone := gone + 1;
    end loop;
    return gone;
end $$;
