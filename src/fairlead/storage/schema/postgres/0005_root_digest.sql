-- The digest of the queue's root partition, so that a root finds its partitions; NULL for a root itself.
ALTER TABLE queues ADD COLUMN root_digest BYTEA;

UPDATE queues SET root_digest = sha256(
    convert_to(namespace_id, 'UTF8') || '\x00'::bytea
    || convert_to(regexp_replace(name, '^/_sys/(.*)/[0-9]+$', '\1'), 'UTF8') || '\x00'::bytea
    || convert_to(type::text, 'UTF8')
)
WHERE name LIKE '/\_sys/%/%';

CREATE INDEX queues_by_root ON queues (root_digest) WHERE root_digest IS NOT NULL;
