import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Map;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.FilterHolder;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's reference of a REST catalog, on the loopback only, for one client: arguments are its port, the JDBC URL of
 * its tables, the warehouse, and the client's id. Iceberg's own program for it takes all addresses and asks nobody.
 */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    var catalog = CatalogUtil.buildIcebergCatalog(
        "rest",
        Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri", arguments[1],
            "jdbc.schema-version", "V1",
            "warehouse", arguments[2]),
        new Configuration());
    var handler = new ServletContextHandler();
    handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    handler.addFilter(new FilterHolder(new OnlyWithToken(arguments[3])), "/*", null);
    var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }

  /** Lets pass what has the token that the catalog gave for the client's credentials, and the request for it. */
  static class OnlyWithToken extends HttpFilter {
    private final String wanted;

    OnlyWithToken(String client) {
      this.wanted = "Bearer client-credentials-token:sub=" + client;
    }

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse answer, FilterChain chain)
        throws IOException, ServletException {
      var asksForToken = request.getRequestURI().equals("/v1/oauth/tokens");
      if (asksForToken || wanted.equals(request.getHeader("Authorization"))) {
        chain.doFilter(request, answer);
        return;
      }
      answer.setStatus(401);
      answer.setContentType("application/json");
      answer.getWriter().write(
          "{\"error\": {\"message\": \"Not logged in\", \"type\": \"NotAuthorizedException\", \"code\": 401}}");
    }
  }
}
