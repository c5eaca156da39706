-- What a writer asks for, in one round trip each. Every one may be asked for again when its reply was lost.
-- `fence` locks the session's row until the end of the transaction: a claim waits for it, and it for a claim.

-- What is confirmed here is on the disk, whatever the server's default is. Says whether that is so.
-- One expression in SQL, so that it costs no call where it is used.
create function graflow_ckpt.durable() returns boolean language sql as $$
    select current_setting('fsync') = 'on' and (
        current_setting('synchronous_commit') <> 'off' or set_config('synchronous_commit', 'on', true) = 'on');
$$;

create function graflow_ckpt.fence(its_session text, its_epoch bigint) returns boolean language plpgsql as $$
begin
    if its_session is null then
        return true;
    end if;
    perform from graflow_ckpt.sessions where session = its_session and epoch = its_epoch for share;
    return found;
end $$;

-- how: ask | take | EPOCH, that of an owner who is dead or has been silent for its whole term
create function graflow_ckpt.claim(
    its_session text, its_claim text, its_owner text, its_term bigint, how text, floor bigint,
    out granted boolean, out its_epoch bigint, out held text, out held_until timestamptz, out held_term bigint
) language plpgsql as $$
declare
    found_claim text;
begin
    perform graflow_ckpt.durable();
    insert into graflow_ckpt.sessions (session, epoch) values (its_session, 0) on conflict do nothing;
    select epoch, owner, until, term, claim into its_epoch, held, held_until, held_term, found_claim
        from graflow_ckpt.sessions where session = its_session for update;
    if found_claim = its_claim then
        granted := true;
        held := null;
        return;
    end if;
    granted := held is null or held_until <= clock_timestamp() or how = 'take' or how = its_epoch::text;
    if not granted then
        return;
    end if;
    its_epoch := greatest(its_epoch, floor) + 1;
    update graflow_ckpt.sessions
        set epoch = its_epoch, owner = its_owner, claim = its_claim, term = its_term,
            until = clock_timestamp() + its_term * interval '1 millisecond'
        where session = its_session;
end $$;

-- Renew the lease; with no `its_term`, only look.
create function graflow_ckpt.hold(
    its_session text, its_epoch bigint, its_term bigint,
    out held boolean, out found_epoch bigint, out found_owner text
) language plpgsql as $$
begin
    select epoch, owner into found_epoch, found_owner from graflow_ckpt.sessions where session = its_session;
    held := coalesce(found_epoch = its_epoch, false);
    if held and its_term is not null then
        update graflow_ckpt.sessions set until = clock_timestamp() + its_term * interval '1 millisecond'
            where session = its_session and epoch = its_epoch;
        held := found;
    end if;
end $$;

create function graflow_ckpt.release(its_session text, its_epoch bigint) returns void language sql as $$
    update graflow_ckpt.sessions set owner = null, until = null
        where session = its_session and epoch = its_epoch;
$$;

create function graflow_ckpt.line(its_session text, its_epoch bigint, its_sequence bigint)
returns boolean language plpgsql as $$
begin
    perform graflow_ckpt.durable();
    if not graflow_ckpt.fence(its_session, its_epoch) then
        return false;
    end if;
    insert into graflow_ckpt.lines (session, epoch, sequence) values (its_session, its_epoch, its_sequence)
        on conflict do nothing;
    return true;
end $$;

-- A chunk that no checkpoint has yet.
create function graflow_ckpt.stage(
    its_session text, its_epoch bigint, its_put text, its_part text, its_number integer, its_data bytea
) returns boolean language plpgsql as $$
begin
    if not graflow_ckpt.fence(its_session, its_epoch) then
        return false;
    end if;
    perform graflow_ckpt.durable();
    insert into graflow_ckpt.staging (put, session, epoch)
        values (its_put, coalesce(its_session, ''), coalesce(its_epoch, 0)) on conflict do nothing;
    insert into graflow_ckpt.chunks values (its_put, its_part, its_number, its_data) on conflict do nothing;
    return true;
end $$;

-- The commit. `its_parts`: part -> {put, stage, size, count}; of each the last chunk comes along, the others
-- are there if `staged`. One value comes back: a row would cost a tenth of a small save.
-- synced | accepted | fenced; GC001 names the part that lacks a chunk
create function graflow_ckpt.put(
    its_session text, its_epoch bigint, its_put text, its_name text, of_session text, of_workflow text,
    of_status text, its_parts jsonb, staged boolean, its_meta bytea, its_pkl bytea, its_state bytea
) returns text language plpgsql as $$
declare
    synced boolean := graflow_ckpt.durable();
    former record;
    lacking text;
begin
    if not graflow_ckpt.fence(its_session, its_epoch) then
        return 'fenced';
    end if;
    if staged then
        select key into lacking from jsonb_each(its_parts) as mine where (value ->> 'count')::integer > 1 + (
            select count(*) from graflow_ckpt.chunks where chunks.put = its_put and chunks.part = mine.key);
        if found then
            raise exception using errcode = 'GC001', message = lacking;
        end if;
        delete from graflow_ckpt.staging where put = its_put;
    end if;
    loop  -- writers of one name come one after the other: by the key if it is new, else by the row
        insert into graflow_ckpt.checkpoints values (its_name, nextval('graflow_ckpt.commits'), its_put,
            of_session, of_workflow, of_status, its_parts, its_meta, its_pkl, its_state) on conflict do nothing;
        exit when found;
        select put, parts into former from graflow_ckpt.checkpoints where name = its_name for update;
        continue when not found;  -- deleted meanwhile
        exit when former.put = its_put;  -- asked for again
        update graflow_ckpt.checkpoints set commit_number = nextval('graflow_ckpt.commits'), put = its_put,
                session = of_session, workflow = of_workflow, status = of_status,
                parts = former.parts || its_parts, meta = its_meta,
                pkl = case when its_parts ? 'pkl' then its_pkl else pkl end,
                state = case when its_parts ? 'state.json' then its_state else state end
            where name = its_name;
        delete from graflow_ckpt.chunks using jsonb_each(former.parts) as old
            where chunks.put = old.value ->> 'put' and chunks.part = old.key and its_parts ? old.key;
        exit;
    end loop;
    return case when synced then 'synced' else 'accepted' end;
end $$;

-- Chunks that will never have a checkpoint.
create function graflow_ckpt.withdraw(its_put text) returns void language sql as $$
    with gone as (delete from graflow_ckpt.staging where put = its_put returning put)
    delete from graflow_ckpt.chunks using gone where chunks.put = gone.put;
$$;

-- What dead writers have left: former owners of the session, and the very slow. Gives how many.
create function graflow_ckpt.sweep(its_session text, its_epoch bigint, seconds integer)
returns bigint language sql as $$
    with dead as (
        select put from graflow_ckpt.staging
            where (session = its_session and epoch < its_epoch)
                or begun < clock_timestamp() - seconds * interval '1 second'
            for update skip locked
    ), gone as (
        delete from graflow_ckpt.staging using dead where staging.put = dead.put returning staging.put
    ), left_over as (
        delete from graflow_ckpt.chunks using gone where chunks.put = gone.put
    )
    select count(*) from gone;
$$;

create function graflow_ckpt.remove(its_name text) returns boolean language plpgsql as $$
declare
    former jsonb;
begin
    perform graflow_ckpt.durable();
    delete from graflow_ckpt.checkpoints where name = its_name returning parts into former;
    if not found then
        return false;
    end if;
    delete from graflow_ckpt.chunks using jsonb_each(former) as old
        where chunks.put = old.value ->> 'put' and chunks.part = old.key;
    return true;
end $$;

-- outcome: ok | fenced | used, if the segment has frames
create function graflow_ckpt.begin_segment(
    its_session text, its_epoch bigint, its_after bigint, out outcome text, out synced boolean
) language plpgsql as $$
begin
    synced := graflow_ckpt.durable();
    if not graflow_ckpt.fence(its_session, its_epoch) then
        outcome := 'fenced';
        return;
    end if;
    insert into graflow_ckpt.segments values (its_session, its_epoch, its_after) on conflict do nothing;
    outcome := 'ok';
    if exists (select from graflow_ckpt.frames
            where session = its_session and epoch = its_epoch and after = its_after) then
        outcome := 'used';
    end if;
end $$;

-- ok | fenced | taken, if something else is there, or the frame before is not
create function graflow_ckpt.append(
    its_session text, its_epoch bigint, its_after bigint, its_number bigint, its_data bytea
) returns text language plpgsql as $$
begin
    perform graflow_ckpt.durable();
    if not graflow_ckpt.fence(its_session, its_epoch) then
        return 'fenced';
    end if;
    if its_number > 0 and not exists (select from graflow_ckpt.frames where session = its_session
            and epoch = its_epoch and after = its_after and number = its_number - 1) then
        return 'taken';
    end if;
    insert into graflow_ckpt.frames values (its_session, its_epoch, its_after, its_number, its_data)
        on conflict do nothing;
    if found or exists (select from graflow_ckpt.frames where session = its_session and epoch = its_epoch
            and after = its_after and number = its_number and data = its_data) then
        return 'ok';
    end if;
    return 'taken';
end $$;
