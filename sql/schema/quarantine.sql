CREATE TABLE IF NOT EXISTS quarantine (
    load_id VARCHAR NOT NULL,
    feed VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    detail VARCHAR NOT NULL,
    payload VARCHAR NOT NULL
);
