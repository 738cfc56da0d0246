INSERT INTO dim_customer (customer_key, source_system, customer_no, created_by)
SELECT
    customer_key,
    source_system,
    customer_no,
    :load_id
FROM arriving_dim_customer;
