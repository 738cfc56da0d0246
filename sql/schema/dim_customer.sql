CREATE TABLE IF NOT EXISTS dim_customer (
    customer_key BIGINT NOT NULL,
    source_system VARCHAR NOT NULL,
    customer_no VARCHAR NOT NULL,
    created_by VARCHAR NOT NULL,
    PRIMARY KEY (customer_key),
    UNIQUE (source_system, customer_no)
);
