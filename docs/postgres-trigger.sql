-- Refuses every write to a table by a transaction in which no fencing token was
-- checked: by the migration script, the console, the handler somebody forgot.
--
-- A fence sees only what goes through it. This trigger asks whether the current
-- transaction is the one that wrote the lock's mark, which sqlfence and pgxfence do
-- with their first statement, also for an equal token. PostgreSQL 13 or later.
--
-- The function is made once. Then, for each table, name the lock that guards it:
--
--     CREATE TRIGGER fenced
--     BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON account
--     FOR EACH STATEMENT EXECUTE FUNCTION fencelock_require('accounts');
--
-- It costs one look-up by primary key for each statement. It does not accept a Check
-- that was made inside a savepoint, whose writes have another transaction id; and
-- COPY, too, is a statement. A superuser can switch triggers off, and the owner of the
-- table can drop this one: revoke what is not needed.
CREATE FUNCTION fencelock_require() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM fencelock_marks
	WHERE scope = convert_to(TG_ARGV[0], 'UTF8') AND xmin = pg_current_xact_id()::xid;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'no fencing token of lock % was checked in this transaction', TG_ARGV[0]
			USING ERRCODE = 'integrity_constraint_violation',
			      HINT = 'Write to ' || TG_TABLE_NAME || ' in the callback of Fence.Tx, or after Fence.Check.';
	END IF;
	RETURN NULL; -- of a trigger for each statement it is ignored
END $$;
