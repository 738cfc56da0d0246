CREATE TABLE IF NOT EXISTS load_ledger (
    pipeline VARCHAR NOT NULL,
    batch_id BIGINT NOT NULL,
    load_id VARCHAR NOT NULL,
    package_checksum VARCHAR NOT NULL,
    fact_rows BIGINT NOT NULL,
    customer_rows BIGINT NOT NULL,
    product_rows BIGINT NOT NULL,
    quarantine_rows BIGINT NOT NULL,
    counts JSON NOT NULL,
    loaded_at TIMESTAMP WITHOUT TIME ZONE NOT NULL,
    PRIMARY KEY (pipeline, batch_id)
);
