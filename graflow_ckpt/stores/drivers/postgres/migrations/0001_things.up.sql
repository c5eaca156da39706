-- Things of a keyed store, in a schema of their own: a key, its bytes, and the tag of the batch that wrote it.
-- Of a meta also the order of commits, and what it is found by.

create sequence graflow_ckpt.numbers;

create table graflow_ckpt.things (
    key text collate "C" primary key,
    tag bytea not null,
    at double precision not null,       -- by this server's clock
    data bytea not null,
    listed int,                         -- how many bytes of a meta's are listed; after them comes its stream
    number bigint,                      -- the last put has the highest
    session text collate "C",
    workflow text collate "C",
    status text collate "C"
) with (fillfactor = 80, toast_tuple_target = 8160);
alter table graflow_ckpt.things alter column data set storage external;
create index things_number on graflow_ckpt.things (number) where number is not null;
create index things_session on graflow_ckpt.things (session, number) where number is not null;
create index things_workflow on graflow_ckpt.things (workflow, number) where number is not null;
create index things_status on graflow_ckpt.things (status, number) where number is not null;

-- Whether what is committed now is on the disk when that is confirmed. It waits, whatever the default is.
create function graflow_ckpt.durable() returns boolean language sql as $$
    select current_setting('fsync') = 'on' and (
        current_setting('synchronous_commit') <> 'off' or set_config('synchronous_commit', 'on', true) = 'on');
$$;

create function graflow_ckpt.now() returns double precision language sql as $$
    select extract(epoch from clock_timestamp())::double precision;
$$;

-- The newest metas with these facts; '': any. The facts are in the text, so that a plan is
-- made for them: one for any session would walk through all metas.
create function graflow_ckpt.find(its_session text, its_workflow text, its_status text, below bigint, most bigint)
returns table (number bigint, key text, data bytea) language plpgsql stable as $$
begin
    return query execute 'select number, key, substring(data for listed) from graflow_ckpt.things where number is not null'
        || case its_session when '' then '' else ' and session = ' || quote_literal(its_session) end
        || case its_workflow when '' then '' else ' and workflow = ' || quote_literal(its_workflow) end
        || case its_status when '' then '' else ' and status = ' || quote_literal(its_status) end
        || format(' and number < %s order by number desc limit %s', below, most);
end $$;

-- A batch: null if something does not hold; else whether it is on the disk. 23505: a key that is to be fresh is not.
-- Of a guard without a tag the key is put fresh.
create function graflow_ckpt.batch(
    its_tag bytea, guards text[], tags bytea[], fresh text[], fresh_data bytea[],
    listeds int[], sessions text[], workflows text[], statuses text[],
    over text[], over_data bytea[], drops text[], needs text[]
) returns boolean language plpgsql as $$
declare
    synced boolean := graflow_ckpt.durable();
begin
    for i in 1 .. coalesce(array_length(guards, 1), 0) loop
        if guards[i] = any(over) then
            perform from graflow_ckpt.things where key = guards[i] and tag = tags[i] for update;
        else
            perform from graflow_ckpt.things where key = guards[i] and tag = tags[i] for share;
        end if;
        if not found then
            return null;
        end if;
    end loop;
    if needs <> '{}' and (select count(*) from graflow_ckpt.things where key = any(needs)) < cardinality(needs) then
        return null;
    end if;
    if over <> '{}' then
        insert into graflow_ckpt.things (key, tag, at, data)
            select k, its_tag, graflow_ckpt.now(), d from unnest(over, over_data) as one(k, d)
            on conflict (key) do update set tag = excluded.tag, at = excluded.at, data = excluded.data;
    end if;
    if fresh <> '{}' then
        insert into graflow_ckpt.things (key, tag, at, data, listed, number, session, workflow, status)
            select k, its_tag, graflow_ckpt.now(), d, l, case when l is not null then nextval('graflow_ckpt.numbers') end,
                s, w, t
            from unnest(fresh, fresh_data, listeds, sessions, workflows, statuses) as one(k, d, l, s, w, t);
    end if;
    if drops <> '{}' then
        delete from graflow_ckpt.things where key = any(drops);
    end if;
    return synced;
end $$;
