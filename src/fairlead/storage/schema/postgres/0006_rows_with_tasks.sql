-- Tasks are found by the number in their queue's row: a row can't be deleted by hand while the queue holds tasks.
CREATE FUNCTION keep_queue_with_tasks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tasks WHERE queue_number = OLD.number) THEN
        RAISE EXCEPTION 'queue % holds tasks: its row can''t be deleted', OLD.name
            USING ERRCODE = 'restrict_violation', HINT = 'Drain the task queue first.';
    END IF;
    RETURN OLD;
END
$$;

CREATE TRIGGER keep_queue_with_tasks BEFORE DELETE ON queues
    FOR EACH ROW EXECUTE FUNCTION keep_queue_with_tasks();
