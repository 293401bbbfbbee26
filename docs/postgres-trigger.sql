-- Refuses writes to a table by a transaction in which no fencing token was checked: by
-- the migration script, the console, the handler somebody forgot.
--
-- A fence sees only what goes through it. This trigger asks whether the current
-- transaction is the one that wrote the lock's mark, which sqlfence and pgxfence do
-- with their first statement, also for an equal token. PostgreSQL 13 or later.
--
-- The function is made once. Write your own schema and table of marks into it, if they
-- are not public and fencelock_marks. (They are named in full, and pg_temp comes last:
-- else anybody could put a temporary table of that name in front.) Then, for each table,
-- name the lock that guards it:
--
--     CREATE TRIGGER fenced
--     BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON account
--     FOR EACH STATEMENT EXECUTE FUNCTION fencelock_require('accounts');
--
-- A partition needs a trigger of its own, for the writes that name it and not its
-- parent. Writers need SELECT on the table of marks, which a fence wants as well.
--
-- It costs one look-up by primary key for each statement. It does not accept a Check
-- that was made inside a savepoint, whose writes have another transaction id. A
-- superuser can switch triggers off, and the owner of the table can drop this one:
-- revoke what is not needed.
CREATE OR REPLACE FUNCTION fencelock_require() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM FROM public.fencelock_marks
	WHERE scope = convert_to(TG_ARGV[0], 'UTF8') AND xmin = pg_current_xact_id()::xid;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'no fencing token of lock % was checked in this transaction', TG_ARGV[0]
			USING ERRCODE = 'integrity_constraint_violation',
			      HINT = 'Write to ' || TG_TABLE_NAME || ' in the callback of Fence.Tx, or after Fence.Check, with a token of lock '
			             || TG_ARGV[0] || ', through a fence whose table of marks is public.fencelock_marks.';
	END IF;
	RETURN NULL; -- of a trigger for each statement it is ignored
END $$;
